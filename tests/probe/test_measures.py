"""Measures that a user registers, and those that are refused."""

import loops
import pytest
from loops import run

from joma.probe.measures import Flagged, forget_measure, measures_of, register_measure
from joma.probe.watch import watch


def test_measures_of_the_user(measure):
    seen_by = {"attention": [], "matrix": [], "query_key": [], "model": []}

    def take(subject, result):
        def function(thing):
            seen_by[subject].append(thing)
            return result(thing)

        measure(f"my_{subject}", function, on=subject, reductions={"top": "max"})

    take("attention", lambda call: {"query_norm": call.q.norm(dim=-1), "top": call.q.amax(dim=(-1, -2, 0))})
    take("matrix", lambda matrix: {"mean": matrix.weight.mean()})
    take("query_key", lambda pair: {"ratio": Flagged(float(pair.query.norm() / pair.key.norm()), "mine")})
    take("model", lambda model: len(list(model.parameters())))
    model = loops.build("llama")
    with watch(model, every=1, measures=[f"my_{subject}" for subject in seen_by], heads=True) as seen:
        run(model, "llama", seen, range(1))
    table = seen.frame().set_index(["site", "metric", "head"])
    q = seen_by["attention"][0].q
    assert table.loc[("model.layers.0.self_attn", "query_norm", -1), "value"] == pytest.approx(q.norm(dim=-1).mean())
    assert table.loc[("model.layers.0.self_attn", "query_norm", 2), "value"] == pytest.approx(
        q[:, 2].norm(dim=-1).mean()
    )
    assert table.loc[("model.layers.0.self_attn", "top", -1), "value"] == pytest.approx(q.max())
    assert table.loc[("", "my_model", -1), "value"] == len(list(model.parameters()))
    assert table.loc[("model.layers.1.self_attn", "ratio", -1), "flag"] == "mine"
    assert seen_by["matrix"][0].site == "model.layers.0.mlp.gate_proj"
    assert ("model.layers.0.mlp.gate_proj", "mean", -1) in table.index


def test_measures_that_are_refused(as_a_user_runs_it):
    with pytest.raises(ValueError, match="'ranks' is a measure of joma's own"):
        register_measure("ranks", print)
    with pytest.raises(ValueError, match=r"no subject of a measure named 'atention'\. Did you mean 'attention'"):
        register_measure("mine", print, on="atention")
    with pytest.raises(TypeError, match="must be a function, got 3"):
        register_measure("mine", 3)
    with pytest.raises(ValueError, match=r"no measure named 'rank'\. Did you mean 'ranks'"):
        measures_of("rank")
    with pytest.raises(ValueError, match="`measures` is empty"):
        measures_of(())
    with pytest.raises(ValueError, match="no registered measure named 'mine'"):
        forget_measure("mine")
