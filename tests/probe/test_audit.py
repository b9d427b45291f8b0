"""Every fault that is planted in a series is named with its evidence, and a series as it should be has none."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from states import LOWER, SITES, walk

from joma.probe.audit import audit, flags
from joma.probe.findings import Fault, Finding
from joma.probe.fingerprint import Fingerprint, sketch, tensor_print


def print_of(state, step, *, compared=None):
    """A fingerprint as an inspection makes it; of the hub's tensors only the measured ones are compared."""
    prints = {name: tensor_print(tensor, whole=True) for name, tensor in state.items()}
    if compared is not None:
        prints = {
            name: each if name in compared else replace(each, digest="", num_compared=0)
            for name, each in prints.items()
        }
    return Fingerprint(
        step=step,
        name=f"step{step}",
        identity=str(step),
        tensors=prints,
        sketches={name: sketch(state[name]) for name in LOWER if name in state},
        sources={site: (name,) for site, name in zip(SITES, LOWER, strict=True)},
    )


def prints_of(states, **settings):
    return [print_of(state, 100 * (i + 1), **settings) for i, state in enumerate(states)]


def kinds(findings):
    return [(finding.kind, finding.step) for finding in findings]


@given(num=st.integers(1, 12), seed=st.integers(0, 10**4), on_hub=st.booleans())
def test_a_clean_series_has_no_finding(num, seed, on_hub):
    series = prints_of(walk(num, seed), compared=LOWER if on_hub else None)
    assert audit(series) == []
    assert audit(list(reversed(series))) == []


@pytest.mark.parametrize("on_hub", [False, True])
def test_neighbours_that_are_copies_are_both_flagged(on_hub):
    states = walk(10)
    states[4] = states[3]
    series = prints_of(states, compared=LOWER if on_hub else None)
    (finding,) = audit(series)
    assert kinds([finding]) == [(Fault.IDENTICAL_CHECKPOINT, 400)]
    assert finding.evidence["steps"] == [400, 500]
    assert finding.evidence["tensors_compared"] == (len(LOWER) if on_hub else len(states[0]))
    assert flags([finding], series) == {step: {"": "identical checkpoint"} for step in (400, 500)}


def test_a_copy_of_the_end_under_an_early_step_is_out_of_place_and_the_end_is_not_flagged():
    states = walk(12)
    states[2] = states[-1]
    series = prints_of(states)
    found = audit(series)
    assert kinds(found) == [(Fault.IDENTICAL_CHECKPOINT, 300), (Fault.OUT_OF_PLACE, 300)]
    assert "They belong to step 1200." in found[0].message
    evidence = found[1].evidence
    assert evidence["steps"] == {"before": 200, "after": 400, "nearest": 1200}
    assert evidence["distances"]["nearest"] == evidence["to_last"] == 0
    assert evidence["distances"]["before"] > 2 * evidence["across"]
    assert "belong to step 1200" in found[1].message
    assert flags(found, series) == {300: {"": "identical checkpoint; out of place"}}


def test_two_swapped_checkpoints_are_out_of_place():
    states = walk(14)
    states[2], states[13] = states[13], states[2]
    found = audit(prints_of(states))
    assert kinds(found) == [(Fault.OUT_OF_PLACE, 300), (Fault.OUT_OF_PLACE, 1400)]
    assert found[0].evidence["steps"]["nearest"] == 1300


def test_weights_of_another_run_belong_nowhere():
    states = walk(10)
    states[4] = walk(1, seed=7)[0]
    (finding,) = audit(prints_of(states))
    assert (finding.kind, finding.step) == (Fault.OUT_OF_PLACE, 500)
    assert "are not of this series there" in finding.message


def test_a_shard_of_another_step_is_named_tensor_by_tensor():
    states = walk(10)
    taken = [name for name in states[0] if name.startswith("layers.1.")]
    states[6] |= {name: states[2][name] for name in taken}
    series = prints_of(states)
    found = [finding for finding in audit(series) if finding.kind is Fault.IDENTICAL_TENSOR]
    assert kinds(found) == [(Fault.IDENTICAL_TENSOR, 700)]
    assert set(found[0].sites) == set(taken)
    assert found[0].evidence["steps"] == [300, 700]
    assert flags(found, series) == {step: {SITES[1]: "identical tensor"} for step in (300, 700)}


def test_tensors_that_never_change_or_prove_nothing_are_left_out():
    states = walk(8)
    for number, state in enumerate(states):
        state["rotary.inv_freq"] = torch.linspace(0, 1, 8)
        state["frozen.weight"] = torch.ones(8, 8).tril()
        state["bias"] = torch.zeros(8) if number < 3 else torch.full((8,), float(number))
        state["gain.weight"] = torch.ones(8, 8) if number < 3 else torch.randn(8, 8)
    states[7]["frozen.weight"] = torch.randn(8, 8)
    states[5]["norm.weight"] = states[4]["norm.weight"]  # a vector that stood still
    assert audit(prints_of(states)) == []


def test_a_series_of_nothing_but_copies():
    states = walk(1) * 4
    (finding,) = audit(prints_of(states))
    assert finding.kind is Fault.IDENTICAL_CHECKPOINT
    assert finding.evidence["flagged"] == [100, 200, 300, 400]


def test_missing_tensors_other_shapes_and_other_types():
    states = walk(8)
    del states[1][LOWER[0]]
    states[3]["embed.weight"] = torch.randn(20, 8)
    states[5] = {name: tensor.half() for name, tensor in states[5].items()}
    found = audit(prints_of(states))
    assert kinds(found) == [(Fault.MISSING_TENSOR, 200), (Fault.SHAPE, 400), (Fault.DTYPE, 600)]
    assert found[0].sites == (LOWER[0],)
    assert (found[1].evidence["found"], found[1].evidence["usual"]) == ("20×8", "16×8")
    assert (found[2].evidence["found"], found[2].evidence["usual"]) == ("float16", "float32")
    assert set(flags(found, [])) == {200, 400}


def test_own_findings_and_gaps_come_along():
    series = prints_of(walk(9))
    broken = Finding(kind=Fault.TRUNCATED, step=500, message="cut")
    series[4] = Fingerprint(step=500, name="step500", identity="", findings=(broken,))
    del series[6]
    found = audit(series)
    assert kinds(found) == [(Fault.TRUNCATED, 500), (Fault.GAP, 700)]
    assert found[1].evidence["missing"] == [700]
    assert flags(found, series) == {500: {"": "truncated"}}


def test_weights_that_are_not_finite_take_no_part_in_distances():
    states = walk(8)
    states[3][LOWER[0]] = torch.full_like(states[3][LOWER[0]], torch.nan)
    assert audit(prints_of(states)) == []  # the inspection names them


def test_the_same_files_are_the_same_weights():
    states = walk(6)
    states[2] = states[1]
    series = [
        replace(each, files={"model.safetensors": str(each.tensors[LOWER[0]].digest)}) for each in prints_of(states)
    ]
    (finding,) = audit(series)
    assert finding.evidence["same_files"]


def test_a_file_of_another_step_is_named_though_its_tensors_were_not_compared():
    shard = "model-00002-of-00002.safetensors"
    series = [
        replace(each, files={"model-00001-of-00002.safetensors": str(each.step), shard: str(each.step)})
        for each in prints_of(walk(8), compared=LOWER)
    ]
    series[5] = replace(series[5], files=series[5].files | {shard: series[2].files[shard]})
    (finding,) = audit(series)
    assert (finding.kind, finding.evidence["file"], finding.evidence["steps"]) == (
        Fault.IDENTICAL_FILE,
        shard,
        [300, 600],
    )
    assert set(flags([finding], series)) == {300, 600}


def test_findings_survive_json():
    finding = Finding(kind=Fault.GAP, step=3, sites=("a",), message="x", evidence={"missing": [1]})
    assert Finding.from_dict(finding.as_dict()) == finding
