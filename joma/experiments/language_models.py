"""Figures 6 and 8: attention entropy and stable rank of language models while they learn, with controls.

Four depths at one learning rate, seven learning rates at one depth, and for the rebound of the entropy, which the paper
puts down to the MLP's nonlinearity, the same models with one ingredient taken away. Runs are trained as `joma.train`
does it, pack by pack, so that an interrupted reproduction goes on where it stopped.
"""

import pandas as pd

from joma.data.corpora import find_text
from joma.engine.measuring import ENTROPY
from joma.experiments import learning_rates
from joma.experiments.assumption1 import drift_pieces, drift_table, is_followed, over_seeds
from joma.experiments.experiment import Experiment, Fact, Result, Workplace
from joma.experiments.language_model_charts import draw
from joma.experiments.language_model_config import Config, full, quick
from joma.experiments.language_model_runs import are_trained, ended_runs, tables_of, training_pieces
from joma.experiments.language_model_verdicts import verdicts
from joma.experiments.rebound_shares import share_table

__all__ = ["EXPERIMENT", "Config", "compute", "missing"]


def compute(config: Config, workplace: Workplace) -> Result:
    """Train what is not trained yet and follow E[g x], then read the records, which is all that is needed of runs."""
    workplace.work_off([*training_pieces(config, workplace), *drift_pieces(config, workplace)])
    found = ended_runs(config, workplace)
    drift = drift_table(config, workplace)
    tables = tables_of(found)
    early = learning_rates.early_signs(found, config)
    dips = [learning_rates.dips(tables["regimes"], tables["runs"], config, text) for text in config.texts]
    return Result(
        tables={
            **tables,
            "early": early,
            "rules": learning_rates.regrets(early),
            "dips": pd.concat(dips, ignore_index=True),
            "shares": share_table(tables["regimes"], config, ENTROPY),
            "drift": drift,
            "drift_means": over_seeds(drift),
        },
        facts=_facts(config, tables["regimes"]),
    )


def missing(config: Config, workplace: Workplace) -> str:
    """Return what is missing to train these models here, a GPU or a text; nothing where they are trained."""
    if are_trained(config, workplace) and is_followed(config, workplace):
        return ""
    if config.needs_gpu and workplace.device == "cpu":
        return "It needs a GPU: on a CPU the runs of figures 6 and 8 would take weeks."
    try:
        for text in config.texts:
            find_text(text)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


def _facts(config: Config, regimes: pd.DataFrame) -> dict[str, Fact]:
    laws = {text: learning_rates.dip_law(regimes, config, text) for text in config.texts}
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
    schema=2,
)
