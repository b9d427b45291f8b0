"""Which runs of figures 6 and 8 have ended while others have not, and which of them can be shown without misleading.

Numbers and curves are means over seeds, so a setting is shown once all its seeds have ended; runs beyond those wait.
Learning rates are held against each other only where all of them are there, and E[g x] is averaged over layers only
where all of them were followed: that is for the verdicts to see.
"""

from dataclasses import dataclass

from joma.experiments.experiment import Workplace
from joma.experiments.language_model_config import TEXT_NAMES, Config
from joma.experiments.language_model_runs import Found, ended_runs, planned_runs
from joma.experiments.language_model_settings import Setting, in_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The runs that have ended, some of them perhaps by diverging."""

    num_done: int
    num_all: int
    found: list[Found]
    """Those of settings of which all seeds have ended."""
    absent: tuple[Setting, ...]
    """The other settings."""

    @property
    def num_waiting(self) -> int:
        """Runs that have ended, of settings of which a seed has not."""
        return self.num_done - len(self.found)

    @property
    def absent_in_words(self) -> str:
        """The settings that are not there, text by text; empty where all are."""
        texts = dict.fromkeys(setting.text for setting in self.absent)
        return "; ".join(
            f"on {TEXT_NAMES.get(text, text)}: {in_words(setting for setting in self.absent if setting.text == text)}"
            for text in texts
        )


def finished(config: Config, workplace: Workplace) -> Finished:
    """Read which runs have ended."""
    planned = {name: suite.setting_of(run) for name, (suite, run) in planned_runs(config).items()}
    ended = {each.run.folder.name: each for each in ended_runs(config, workplace)}
    absent = dict.fromkeys(setting for name, setting in planned.items() if name not in ended)
    return Finished(
        num_done=len(ended),
        num_all=len(planned),
        found=[each for name, each in ended.items() if planned[name] not in absent],
        absent=tuple(absent),
    )
