"""Figures 6 and 8: attention entropy and stable rank of language models while they learn, with controls.

Four depths at one learning rate, seven learning rates at one depth, and for the rebound of the entropy, which the paper
puts down to the MLP's nonlinearity, the same models with one ingredient taken away. Runs are trained as `joma.train`
does it, pack by pack, so that an interrupted reproduction goes on where it stopped.
"""

from collections.abc import Sequence

import pandas as pd

from joma.data.corpora import find_text
from joma.engine.measuring import ENTROPY
from joma.experiments import learning_rates, rebound_until_best
from joma.experiments.assumption1 import (
    drift_pieces,
    drift_so_far,
    drift_table,
    not_followed,
    num_trainings,
    over_seeds,
)
from joma.experiments.experiment import Experiment, Fact, Part, Result, Workplace
from joma.experiments.language_model_charts import draw
from joma.experiments.language_model_config import Config, full, quick
from joma.experiments.language_model_finished import finished
from joma.experiments.language_model_runs import Found, are_trained, ended_runs, tables_of, training_pieces
from joma.experiments.language_model_settings import absent, by_rate
from joma.experiments.language_model_verdicts import verdicts
from joma.experiments.markdown import enumerated
from joma.experiments.rebound_shares import share_table

__all__ = ["EXPERIMENT", "Config", "compute", "missing"]


def compute(config: Config, workplace: Workplace) -> Result:
    """Train what is not trained yet and follow E[g x], then read the records, which is all that is needed of runs."""
    workplace.work_off([*training_pieces(config, workplace), *drift_pieces(config, workplace)])
    return _result(config, ended_runs(config, workplace), drift_table(config, workplace))


def so_far(config: Config, workplace: Workplace) -> Part | None:
    """Read what has ended, as `language_model_finished` says; None until a setting or a training of E[g x] has.

    The trainings that follow E[g x] are counted with the runs: without them not all is done.
    """
    ended, drift = finished(config, workplace), drift_so_far(config, workplace)
    if not ended.found and drift.empty:
        return None
    unfollowed = not_followed(config, workplace)
    num_done = ended.num_done + num_trainings(config) - len(unfollowed)
    num_all = ended.num_all + num_trainings(config)
    left = "; ".join(filter(None, (ended.absent_in_words, _unfollowed_in_words(unfollowed, config))))
    counted = (
        f"The {num_all} trainings are {ended.num_all} runs and {num_trainings(config)} that follow E[g x]. A setting "
        f"is shown once all its seeds have ended. Not yet: {left}."
    )
    return Part.of(
        _result(config, ended.found, drift),
        num_done=num_done,
        num_all=num_all,
        left=left,
        num_waiting=ended.num_waiting,
        what="trainings",
        notes=[counted],
    )


def _unfollowed_in_words(names: Sequence[str], config: Config) -> str:
    if len(names) == num_trainings(config):
        return "all trainings that follow E[g x]"
    return f"trainings that follow E[g x]: {enumerated(names)}" if names else ""


def _result(config: Config, found: list[Found], drift: pd.DataFrame) -> Result:
    """Read the records; learning rates are held against each other on texts that have all of them."""
    tables = tables_of(found)
    texts = [text for text in config.texts if not absent(by_rate(config, text), tables["runs"])]
    early = learning_rates.early_signs([each for each in found if each.text in texts], config)
    return Result(
        tables={
            **tables,
            "early": early,
            "rules": learning_rates.regrets(early),
            "dips": learning_rates.dips(tables["regimes"], tables["runs"], config, *config.texts),
            "shares": share_table(tables["regimes"], config, ENTROPY),
            rebound_until_best.TABLE: rebound_until_best.regimes_until_best(found, config),
            "drift": drift,
            "drift_means": over_seeds(drift),
        },
        facts=_facts(config, tables["regimes"], texts),
    )


def missing(config: Config, workplace: Workplace) -> str:
    """Return what is missing to train these models here, a GPU or a text; nothing where they are trained."""
    if are_trained(config, workplace) and not not_followed(config, workplace):
        return ""
    if config.needs_gpu and workplace.device == "cpu":
        return "It needs a GPU: on a CPU the runs of figures 6 and 8 would take weeks."
    try:
        for text in config.texts:
            find_text(text)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


def _facts(config: Config, regimes: pd.DataFrame, texts: list[str]) -> dict[str, Fact]:
    laws = {text: learning_rates.dip_law(regimes, config, text) for text in texts}
    return {
        "text": config.texts[0],
        "rate": config.rate,
        "rate_depth": config.rate_depth,
        **{f"{name} {text}": value for text, law in laws.items() for name, value in law.items()},
    }


EXPERIMENT = Experiment(
    id="figures6-8",
    title="Attention of language models while they learn",
    place="Section 6, Figures 6 and 8; Section 4 on ranks; Assumption 1",
    question=(
        "Does attention first become sparse and then dense again, in which layers and at which learning rates, does "
        "that go with the lowest loss, and is it the MLP's nonlinearity that brings it back?"
    ),
    configs={"quick": quick, "full": full},
    compute=compute,
    draw=draw,
    verdicts=verdicts,
    missing=missing,
    in_pieces=True,
    so_far=so_far,
    schema=3,
)
