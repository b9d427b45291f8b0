"""One experiment of a reproduction: found or computed, judged, drawn and written down, whatever happens to it."""

import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joma.experiments import cache, origins
from joma.experiments.cache import DamagedResultError, Kept
from joma.experiments.experiment import Experiment, Part, Result, Workplace
from joma.experiments.parts import labelled, undecided
from joma.experiments.publication import publish
from joma.experiments.record import Record, Status, seeds_in
from joma.experiments.registry import experiment, usual_seconds
from joma.experiments.timetable import WHOLE, OutOfTime, Piece, Tell, Timetable
from joma.experiments.work_log import WorkLog
from joma.store.files import write_text
from joma.store.record import now, plain
from joma.verdicts import Outcome, Verdict

ERROR = "error.txt"
"""File with the traceback of an experiment that failed."""
NOT_TRIED = "What could not be had was not tried again:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """An experiment to run, with its preset, in a folder and on a device."""

    id: str
    preset: str
    out: Path
    device: str
    timetable: Timetable = field(default_factory=Timetable)
    """Which pieces of work may begin in this call."""

    @property
    def folder(self) -> Path:
        """The folder of the experiment."""
        return self.out / self.id

    def run(self, tell: Tell) -> Record:
        """Return the record of the experiment, written down with tables and figures; no exception gets out."""
        (self.folder / ERROR).unlink(missing_ok=True)
        try:
            return self._run(experiment(self.id), tell)
        except Exception as error:
            failed = replace(self._bare(), status=Status.FAILED, reason=self._written_down(error))
            publish(self.folder, failed, {})
            return failed

    def _written_down(self, error: Exception) -> str:
        """Keep the traceback of an error, and return it in one line."""
        write_text(self.folder / ERROR, "".join(traceback.format_exception(error)))
        return " ".join(f"{type(error).__name__}: {error} (traceback in {self.folder / ERROR})".split())

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
        settings = plain(config)
        base = replace(self._bare(), config=settings, seeds=seeds_in(settings))
        notes: tuple[str, ...] = ()
        try:
            kept = cache.load(self._kept_folder(found, config))
        except DamagedResultError as error:
            kept, notes = None, (str(error),)
        if kept is not None and kept.result.failures:
            kept, notes = self._mended(found, config, tell, kept)
        if kept is None:
            place = self._workplace(found, config, tell)
            if reason := found.missing(config, place):
                base, is_begun = replace(base, reason=reason, notes=notes), bool(place.timetable.log.devices)
                return self._unfinished(base, found, config) if is_begun else self._not_run(base)
            try:
                kept = self._computed(found, config, tell)
            except OutOfTime as out:
                left = replace(base, reason=out.left, advice=out.advice, notes=notes)
                return self._unfinished(left, found, config)
            notes = tuple(f"{note} It was computed again." for note in notes)
        return self._judged(found, config, kept, replace(base, notes=notes))

    def _mended(self, found: Experiment, config: Any, tell: Tell, kept: Kept) -> tuple[Kept, tuple[str, ...]]:
        """Try again what could not be had; where that cannot be done in this call what is kept stays, with a note."""
        if reason := found.missing(config, self._workplace(found, config, tell)):
            return kept, (f"{NOT_TRIED} {reason}",)
        try:
            return self._computed(found, config, tell), ()
        except OutOfTime:
            return kept, (f"{NOT_TRIED} the time of the call was not enough.",)

    def _computed(self, found: Experiment, config: Any, tell: Tell) -> Kept:
        """Compute, keep, and read back: what is judged is what is kept, the first time as every other."""
        folder = self._kept_folder(found, config)
        place = self._workplace(found, config, tell)
        log = place.timetable.log

        def progress(share: float | int, doing: str) -> None:
            log.note()
            tell(share, doing)

        place.folder.mkdir(parents=True, exist_ok=True)
        try:
            result = self._result(found, config, replace(place, progress=progress))
        finally:
            log.save()
        log.begin()  # what was put together here rests on this software too, whoever did the pieces
        cache.keep(folder, Kept(result=result, about=self._about(log)))
        kept = cache.load(folder)
        if kept is None:
            raise FileNotFoundError(f"{folder} has vanished while it was used. Leave the folder alone and try again.")
        return kept

    def _about(self, log: WorkLog) -> dict[str, Any]:
        """Return how everything was computed that is finished until now."""
        return {
            "device": " and ".join(log.devices) or self.timetable.device,
            "seconds": log.seconds,
            "computed": now(),
            **origins.told(log.origins),
        }

    def _result(self, found: Experiment, config: Any, place: Workplace) -> Result:
        """Compute in pieces, or as the one piece that most experiments are."""
        if found.in_pieces:
            return found.compute(config, place)
        results: list[Result] = []
        place.timetable.log.forget_pieces()  # of a result that was damaged
        whole = Piece(
            kind=WHOLE,
            seconds=usual_seconds(self.id, self.preset, self.device),
            work=lambda tell: results.append(found.compute(config, replace(place, progress=tell))),
        )
        replace(place, timetable=replace(place.timetable, expect=lambda seconds: None)).work_off([whole])
        return results[0]

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
        missed = replace(base, status=Status.NOT_RUN, verdicts=(_without_verdict(base),))
        publish(self.folder, missed, {})
        return missed

    def _unfinished(self, base: Record, found: Experiment, config: Any) -> Record:
        """Show what is finished; where that cannot be done it is a fault of ours, and the work goes on all the same."""
        place = self._workplace(found, config, lambda share, doing: None)
        log = place.timetable.log
        left = replace(
            base,
            status=Status.UNFINISHED,
            device=" and ".join(log.devices) or base.device,
            seconds=log.seconds,
        )
        verdict = _without_verdict(base)
        try:
            part = None if found.so_far is None else found.so_far(config, place)
            if part is not None:
                return self._judged_in_part(found, config, part, left, log)
        except Exception as error:
            told = f"What is finished could not be shown: {self._written_down(error)}."
            left, verdict = replace(left, notes=(*left.notes, told)), replace(verdict, sound=False)
        left = replace(left, verdicts=(verdict,))
        publish(self.folder, left, {})
        return left

    def _judged_in_part(self, found: Experiment, config: Any, part: Part, base: Record, log: WorkLog) -> Record:
        charts = labelled(found.draw(part.result), part.words)
        shown = replace(
            base,
            part=part.words,
            notes=(*base.notes, *part.notes),
            verdicts=tuple(undecided(verdict, part.words) for verdict in found.verdicts(part.result, config)),
            charts=tuple(chart.id for chart in charts),
            tables=tuple(part.result.tables),
        )
        log.begin()  # for what is put together here, as of a whole result
        publish(self.folder, shown, self._about(log) | {"seconds": base.seconds}, part.result, charts)
        return shown

    def _bare(self) -> Record:
        title, place, question = self.words()
        return Record(
            id=self.id,
            title=title,
            place=place,
            question=question,
            preset=self.preset,
            device=self.timetable.device,
            seconds=0.0,
            status=Status.NOT_RUN,
        )

    def _kept_folder(self, found: Experiment, config: Any) -> Path:
        return self.folder / "kept" / cache.key_of(found, config)

    def _workplace(self, found: Experiment, config: Any, tell: Tell) -> Workplace:
        folder = self.folder / "work" / cache.key_of(found, config)
        timetable = replace(self.timetable, owner=self.id, log=WorkLog(folder.with_suffix(".json")))
        return Workplace(folder=folder, device=self.device, progress=tell, timetable=timetable)


def _without_verdict(base: Record) -> Verdict:
    """Return what stands in the place of verdicts where there is nothing to judge yet."""
    return Verdict(
        id=base.id,
        title=base.title,
        source=base.place,
        claim=base.question,
        outcome=Outcome.NOT_RUN,
        explanation=base.reason,
    )
