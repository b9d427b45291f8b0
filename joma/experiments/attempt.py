"""One experiment of a reproduction: found or computed, judged, drawn and written down, whatever happens to it."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joma.experiments import cache
from joma.experiments.cache import DamagedResultError, Kept
from joma.experiments.experiment import Experiment, Workplace
from joma.experiments.progress import Stopwatch
from joma.experiments.publication import publish
from joma.experiments.record import Record, Status, seeds_in
from joma.experiments.registry import experiment
from joma.runs import description
from joma.runs.files import write_text
from joma.verdicts import Outcome, Verdict

ERROR = "error.txt"
"""File with the traceback of an experiment that failed."""
Tell = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """An experiment to run, with its preset, in a folder and on a device."""

    id: str
    preset: str
    out: Path
    device: str

    @property
    def folder(self) -> Path:
        """The folder of the experiment."""
        return self.out / self.id

    def run(self, tell: Tell) -> Record:
        """Return the record of the experiment, written down with tables and figures; no exception gets out."""
        (self.folder / ERROR).unlink(missing_ok=True)
        cache.remove_leftovers(self.folder / "kept")
        try:
            return self._run(experiment(self.id), tell)
        except Exception as error:
            write_text(self.folder / ERROR, traceback.format_exc())
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            failed = replace(
                self._bare(), status=Status.FAILED, reason=f"{reason} (traceback in {self.folder / ERROR})"
            )
            publish(self.folder, failed, {})
            return failed

    def is_kept(self) -> bool:
        """Whether there is a result to go on from, be it damaged."""
        try:
            found = experiment(self.id)
            return self._kept_folder(found, found.config(self.preset)).exists()
        except Exception:  # it will come again, and be told, when the experiment is run
            return False

    def words(self) -> tuple[str, str, str]:
        """Return title, place and question; of an experiment that cannot be imported, its id alone."""
        try:
            found = experiment(self.id)
        except Exception:
            return self.id, "", ""
        return found.title, found.place, found.question

    def missing(self) -> str:
        """Return what is missing here to run the experiment, empty when nothing is."""
        try:
            found = experiment(self.id)
            config = found.config(self.preset)
            return found.missing(config, self._workplace(found, config, lambda share, doing: None))
        except Exception as error:
            return f"fails: {type(error).__name__}, {error}"

    def _run(self, found: Experiment, tell: Tell) -> Record:
        config = found.config(self.preset)
        plain = description.plain(config)
        base = replace(self._bare(), config=plain, seeds=seeds_in(plain))
        notes: tuple[str, ...] = ()
        try:
            kept = cache.load(self._kept_folder(found, config))
        except DamagedResultError as error:
            kept, notes = None, (f"{error} It was computed again.",)
        if kept is None:
            if reason := found.missing(config, self._workplace(found, config, tell)):
                return self._not_run(replace(base, reason=reason))
            kept = self._computed(found, config, tell)
        return self._judged(found, config, kept, replace(base, notes=notes))

    def _computed(self, found: Experiment, config: Any, tell: Tell) -> Kept:
        """Compute, keep, and read back: what is judged is what is kept, the first time as every other."""
        folder = self._kept_folder(found, config)
        place = self._workplace(found, config, tell)
        watch = Stopwatch(place.folder.with_suffix(".json"))

        def progress(share: float | int, doing: str) -> None:
            watch.note()
            tell(share, doing)

        place.folder.mkdir(parents=True, exist_ok=True)
        result = found.compute(config, replace(place, progress=progress))
        now = description.started(folder, "reproduce", {}, None)
        about = {
            "device": self.device,
            "seconds": watch.seconds,
            "computed": now.started,
            "versions": now.versions,
            "git_commit": now.git_commit,
        }
        cache.keep(folder, Kept(result=result, about=about))
        kept = cache.load(folder)
        if kept is None:
            raise FileNotFoundError(f"{folder} has vanished while it was used. Leave the folder alone and try again.")
        return kept

    def _judged(self, found: Experiment, config: Any, kept: Kept, base: Record) -> Record:
        charts = found.draw(kept.result)
        done = replace(
            base,
            status=Status.DONE,
            device=kept.about["device"],
            seconds=kept.about["seconds"],
            verdicts=found.verdicts(kept.result, config),
            charts=tuple(chart.id for chart in charts),
            tables=tuple(kept.result.tables),
        )
        publish(self.folder, done, kept.about, kept.result, charts)
        return done

    def _not_run(self, base: Record) -> Record:
        verdict = Verdict(
            id=base.id,
            title=base.title,
            source=base.place,
            claim=base.question,
            outcome=Outcome.NOT_RUN,
            explanation=base.reason,
        )
        missed = replace(base, status=Status.NOT_RUN, verdicts=(verdict,))
        publish(self.folder, missed, {})
        return missed

    def _bare(self) -> Record:
        title, place, question = self.words()
        return Record(
            id=self.id,
            title=title,
            place=place,
            question=question,
            preset=self.preset,
            device=self.device,
            seconds=0.0,
            status=Status.NOT_RUN,
        )

    def _kept_folder(self, found: Experiment, config: Any) -> Path:
        return self.folder / "kept" / cache.key_of(found, config)

    def _workplace(self, found: Experiment, config: Any, tell: Tell) -> Workplace:
        return Workplace(folder=self.folder / "work" / cache.key_of(found, config), device=self.device, progress=tell)
