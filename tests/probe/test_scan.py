"""A real series from disk and through the hub: measured, audited, resumed; every planted fault is found."""

import errno
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import torch
from loopback_hub import REPOSITORY
from safetensors.torch import load_file, save_file
from states import SITES, walk
from test_checkpoint import save_malicious
from trained_series import STEPS

from joma import cli
from joma.errors import UnknownNameError
from joma.probe.findings import Fault
from joma.probe.inspection import inspect_checkpoint
from joma.probe.scanning import scan
from joma.store import RunLockedError, info, open_run, read, read_events
from joma.terminal import options_named

LOWER_OF_WALK = "layers.0.mlp.fc1.weight"
LOWER = "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"
WHERE = ["disk", "hub"]


@pytest.fixture
def scan_of(serve, tmp_path):
    """Scan a folder of checkpoints as it lies, or as revisions of a hub."""

    def run(folder, where="disk", *, out="out", **settings):
        if where == "disk":
            return scan(folder, out=tmp_path / out, **settings)
        serve({f"step{path.name.removeprefix('checkpoint-')}": path for path in folder.iterdir()})
        return scan(REPOSITORY, revisions="step*", out=tmp_path / out, **settings)

    return run


def save_walk(folder, num, *, first=1, change=lambda step, state: state, suffix="safetensors"):
    """Save the states of a random walk as step1, step2 and so on; return the folder."""
    folder.mkdir(exist_ok=True)
    for step, state in enumerate(walk(num), start=first):
        (save_file if suffix == "safetensors" else torch.save)(change(step, state), folder / f"step{step}.{suffix}")
    return folder


def ranks(folder):
    table = read(folder)
    return table[table["metric"] == "stable_rank"]


def kinds(found):
    return [(finding.kind, finding.step) for finding in found.findings]


def values(folder):
    """Everything that was measured, without what it cost."""
    table = read(folder)
    return table[table["kind"] != "cost"].reset_index(drop=True)


@pytest.mark.parametrize("where", WHERE)
def test_a_clean_series_is_measured_exactly_and_has_no_finding(scan_of, trained, tmp_path, where):
    seen = []
    found = scan_of(trained, where, progress=lambda *at: seen.append(at))
    assert (found.num_checkpoints, found.num_measured, found.num_known) == (8, 8, 0)
    assert found.findings == () and found.failures == {} and found.sound
    assert [done for _, done, _ in seen] == list(range(9))
    assert seen[-1] == ("step40" if where == "hub" else "checkpoint-40", 8, 8)
    table = ranks(tmp_path / "out")
    assert [(row.step, row.layer) for row in table.itertuples()] == [
        (step, layer) for step in STEPS for layer in (0, 1)
    ]
    assert (table["flag"] == "").all() and (table["kind"] == "mlp").all()
    for row in table.itertuples():
        weight = load_file(trained / f"checkpoint-{row.step}" / "model.safetensors")[LOWER.format(row.layer)].double()
        s = torch.linalg.svdvals(weight)
        assert row.value == pytest.approx(float(s.square().sum() / s[0] ** 2), rel=1e-6)
        assert LOWER.format(row.layer).removesuffix(".weight") == row.site
    assert len(read_events(tmp_path / "out")) == 0
    assert (info(tmp_path / "out").kind, info(tmp_path / "out").status) == ("scan", "finished")
    assert json.loads(json.dumps(found.as_dict()))["sound"]


def test_the_hub_sends_headers_and_lower_matrices_and_nothing_else(serve, trained, tmp_path):
    hub = serve({f"step{step}": trained / f"checkpoint-{step}" for step in STEPS})
    scan(REPOSITORY, revisions="step*", out=tmp_path / "hub")
    path = trained / "checkpoint-5" / "model.safetensors"
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    lower = sum(load_file(path)[LOWER.format(layer)].nbytes for layer in (0, 1))
    assert hub.sent == {f"step{step}/model.safetensors": header + lower for step in STEPS}
    assert lower + header < path.stat().st_size / 3
    hub.sent.clear()
    again = scan(REPOSITORY, revisions="step*", out=tmp_path / "hub")
    assert (again.num_measured, again.num_known) == (0, 8)
    assert not hub.sent
    scan(trained, out=tmp_path / "disk")
    on_disk = values(tmp_path / "disk")
    products = on_disk["metric"].str.startswith("qk_")  # queries and keys are not fetched
    pandas.testing.assert_frame_equal(values(tmp_path / "hub"), on_disk[~products].reset_index(drop=True))


def weights_at(series, step):
    return series / f"checkpoint-{step}" / "model.safetensors"


def copy_weights(series, source, target):
    shutil.copy(weights_at(series, source), weights_at(series, target))


def truncate(series):
    weights_at(series, 15).write_bytes(weights_at(series, 15).read_bytes()[:-1000])


def break_the_index(series):
    """A map to lists where names of files are expected, which once ended the scan of all others."""
    weights_at(series, 15).unlink()
    (series / "checkpoint-15" / "model.safetensors.index.json").write_text('{"weight_map": {"a": ["x"]}}')


def carry_code(series):
    weights_at(series, 15).unlink()
    save_malicious(series / "checkpoint-15" / "pytorch_model.bin", series.parent / "ran", "zip")


PLANTED = {
    "duplicate": (lambda s: copy_weights(s, 20, 25), [(Fault.IDENTICAL_CHECKPOINT, 20)], {20, 25}),
    "truncated": (truncate, [(Fault.TRUNCATED, 15)], set()),
    "broken index": (break_the_index, [(Fault.UNREADABLE, 15)], set()),
    "malicious": (carry_code, [(Fault.UNSAFE, 15)], set()),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_nothing_else(scan_of, series, tmp_path, name, where):
    plant, expected, flagged = PLANTED[name]
    plant(series)
    found = scan_of(series, where)
    assert kinds(found) == expected
    assert not found.sound
    table = values(tmp_path / "out")
    assert set(table.loc[table["flag"] != "", "step"]) == flagged
    assert all(
        (table.loc[table["step"] == step, "flag"].str.contains(kind.value)).all()
        for kind, step in expected
        if step in flagged
    )
    events = read_events(tmp_path / "out")
    evidence = [json.loads(each) for each in events.loc[events["kind"] == "audit", "evidence"]]
    assert [each["finding"] for each in evidence] == [kind.value for kind, _ in expected]
    assert all(len(each) > 1 for each in evidence)
    assert not (tmp_path / "ran").exists()
    assert (info(tmp_path / "out").status, (tmp_path / "out" / "downloads").exists()) == ("finished", False)


UNDEFINED = {
    "not finite": (slice(2), torch.nan, torch.nan, "2 of 256 entries are NaN or infinite"),
    "zeroed": (slice(None), 0.0, 0.0, "every entry is 0"),
}


@pytest.mark.parametrize("kind", UNDEFINED)
def test_values_that_cannot_be_taken_are_nan_and_say_why(tmp_path, kind):
    entries, value, norm, why = UNDEFINED[kind]

    def change(step, state):
        if step == 4:
            state[LOWER_OF_WALK].view(-1)[entries] = value
        return state

    found = scan(save_walk(tmp_path, 4, first=2, change=change), out=tmp_path / "out")
    assert kinds(found) == [(Fault(kind), 4)]
    rows = values(tmp_path / "out").query("step == 4 and layer == 0").set_index("metric")
    assert rows.loc["stable_rank", "value"] != rows.loc["stable_rank", "value"]
    assert rows.loc["stable_rank", "flag"] == f"{why}; {kind}"
    assert rows.loc["spectral_norm", "value"] == pytest.approx(norm, nan_ok=True)


def test_a_second_call_measures_what_is_new_or_changed_and_takes_back_what_no_longer_holds(trained, tmp_path):
    series, out = tmp_path / "series", tmp_path / "out"
    for step in (5, 10, 15, 25, 30):
        shutil.copytree(trained / f"checkpoint-{step}", series / f"checkpoint-{step}")
    copy_weights(series, 5, 10)
    first = scan(series, out=out)
    assert kinds(first) == [(Fault.IDENTICAL_CHECKPOINT, 5), (Fault.GAP, 20)]
    assert set(values(out).query("flag != ''")["step"]) == {5, 10}
    shutil.copytree(trained / "checkpoint-20", series / "checkpoint-20")
    shutil.copy(trained / "checkpoint-10" / "model.safetensors", series / "checkpoint-10")
    second = scan(series, out=out)
    assert (second.num_measured, second.num_known, second.findings) == (2, 4, ())
    assert (values(out)["flag"] == "").all()
    events = read_events(out)
    assert [json.loads(evidence).get("withdrawn") for evidence in events["evidence"]] == [True, True]
    assert set(events["level"]) == {"info"}
    third = scan(series, out=out)
    assert (third.num_measured, third.num_known) == (0, 6)
    pandas.testing.assert_frame_equal(events, read_events(out))
    scan(series, out=tmp_path / "fresh")
    pandas.testing.assert_frame_equal(values(out), values(tmp_path / "fresh"))
    for step in (5, 10, 15, 20, 25):
        shutil.rmtree(series / f"checkpoint-{step}")
    last = scan(series, out=out)
    assert (last.num_checkpoints, last.num_measured, last.findings) == (1, 0, ())
    pandas.testing.assert_frame_equal(values(out), values(tmp_path / "fresh"))  # what is gone stays in the record


def test_flagged_values_are_recorded_and_left_out_of_the_table(tmp_path):
    def halved(step, state):
        weight = state[LOWER_OF_WALK].clone()
        weight[len(weight) // 2 :] = 0  # a lower rank than any checkpoint has
        return state | {LOWER_OF_WALK: weight} if step == 4 else state

    clean, faulty = (
        scan(save_walk(tmp_path / name, 7, change=change), out=tmp_path / f"{name}-out")
        for name, change in (("clean", lambda step, state: state), ("faulty", halved))
    )
    assert faulty.grave and set(values(faulty.folder).query("flag != ''")["step"]) == {4}
    lowest = [each.as_dict()["layers"][0]["lowest"] for each in (clean, faulty)]
    assert lowest[0] == pytest.approx(lowest[1])


def few(trained, tmp_path, steps=(5, 10)):
    for step in steps:
        shutil.copytree(trained / f"checkpoint-{step}", tmp_path / "few" / f"checkpoint-{step}")
    return tmp_path / "few"


@pytest.mark.parametrize("where", WHERE)
def test_entropy_with_a_text_and_added_to_ranks_that_are_there(scan_of, trained, text, tmp_path, where):
    folder = few(trained, tmp_path)
    settings = {"text": text, "window": 32, "num_windows": 2, "per_head": True}
    both = scan_of(folder, where, out="both", **settings)
    assert both.findings == ()
    table = values(tmp_path / "both")
    entropy = table[table["metric"] == "entropy"]
    assert len(entropy) == 2 * 2 * (1 + 4)  # steps, layers, heads and their mean
    assert entropy["value"].between(0, 3.5).all() and (entropy["kind"] == "attention").all()
    assert not (tmp_path / "both" / "downloads").exists()
    scan_of(folder, where, out="later")
    later = scan_of(folder, where, out="later", **settings)
    assert (later.num_measured, later.findings) == (2, ())
    pandas.testing.assert_frame_equal(values(tmp_path / "later"), table)
    assert scan_of(folder, where, out="later", **settings).num_measured == 0
    assert scan_of(folder, where, out="later").num_measured == 0
    settings["num_windows"] = 1
    assert scan_of(folder, where, out="later", **settings).num_measured == 2


def test_a_model_that_cannot_be_built_has_ranks_and_a_finding(trained, text, tmp_path):
    folder = few(trained, tmp_path)
    (folder / "checkpoint-10" / "config.json").unlink()
    found = scan(folder, out=tmp_path / "out", text=text, window=32, num_windows=1)
    assert kinds(found) == [(Fault.NO_ENTROPY, 10)]
    assert len(ranks(tmp_path / "out")) == 4
    assert set(values(tmp_path / "out").query("metric == 'entropy'")["step"]) == {5}
    assert (values(tmp_path / "out")["flag"] == "").all()


def test_bad_input_is_one_line_and_writes_nothing(trained, text, tmp_path, hub_at):
    (tmp_path / "empty").mkdir()
    (tmp_path / "states").mkdir()
    (tmp_path / "short.txt").write_text("too short")
    save_file(walk(1)[0], tmp_path / "states" / "step1.safetensors")
    save_file({"a.weight": torch.ones(3, 3)}, tmp_path / "step1.safetensors")
    hub_at("http://127.0.0.1:9")  # nobody listens
    cases = [
        ((tmp_path / "empty",), {}, "holds no checkpoint"),
        ((tmp_path / "nowhere",), {}, "There is no file or folder"),
        (("org/model",), {"revisions": "step*"}, "The hub cannot be reached"),
        ((trained,), {"text": tmp_path / "short.txt"}, "The text is shorter than one window"),
        ((trained,), {"text": tmp_path / "nowhere.txt"}, "There is no text"),
        ((trained,), {"window": 8}, "Pass `text` too"),
        ((trained,), {"text": text, "num_windows": 0}, "`num_windows` must be positive"),
        ((trained,), {"mlp_pattern": "("}, "`mlp_pattern` must be a regular expression"),
        ((trained,), {"mlp_pattern": "nothing"}, "to measure: No matrix matches `mlp_pattern=nothing`"),
        ((trained,), {"on": "slurm"}, "There is no place to run tasks named 'slurm'"),
        ((tmp_path / "states",), {"text": text}, "step1.safetensors has no config.json"),
        ((tmp_path / "step1.safetensors",), {}, "shows nothing to measure: .* Name it by `mlp_pattern=`"),
        ((), {}, "There is nothing to scan"),
    ]
    for sources, settings, match in cases:
        with pytest.raises((ValueError, OSError), match=match) as caught:
            scan(sources, out=tmp_path / "out", **settings)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists(), match


def test_a_tokenizer_that_does_not_fit_is_refused_before_anything_is_written(trained, text, tmp_path):
    series = few(trained, tmp_path)
    path = series / "checkpoint-5" / "tokenizer.json"
    record = json.loads(path.read_text())
    record["model"]["vocab"] = {token: number + 1000 for token, number in record["model"]["vocab"].items()}
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="The tokenizer does not fit the model"):
        scan(series, out=tmp_path / "out", text=text)
    assert not (tmp_path / "out").exists()
    found = scan(series, out=tmp_path / "out", text=text, window=32, num_windows=1, tokenizer=series / "checkpoint-10")
    assert found.findings == ()


def test_a_folder_that_is_being_written_is_refused(trained, tmp_path):
    with open_run(tmp_path / "out", kind="scan", config={}), pytest.raises(RunLockedError):
        scan(trained, out=tmp_path / "out")
    with open_run(tmp_path / "watched", kind="watch", config={}):
        pass
    with pytest.raises(ValueError, match="holds a run of kind 'watch'"):
        scan(trained, out=tmp_path / "watched")


def test_revisions_that_are_not_reached_are_said_and_tried_again(serve, trained, tmp_path):
    hub = serve({f"step{step}": trained / f"checkpoint-{step}" for step in (5, 10, 15)})
    hub.failing.add("step10")
    first = scan(REPOSITORY, revisions="step*", out=tmp_path / "out")
    assert (first.num_measured, first.num_known, first.sound) == (2, 0, False)
    assert list(first.failures) == ["step10"] and "The hub refused" in first.failures["step10"]
    assert info(tmp_path / "out").status == "failed"
    assert "The hub refused" in read_events(tmp_path / "out").query("kind == 'exception'")["message"].item()
    hub.failing.clear()
    second = scan(REPOSITORY, revisions="step*", out=tmp_path / "out")
    assert (second.num_measured, second.num_known, second.sound) == (1, 2, True)
    hub.failing |= {"step5", "step10", "step15"}
    with pytest.raises(OSError, match="The hub refused a request"):
        scan(REPOSITORY, revisions="step*", out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("keep", [False, True])
def test_pickles_on_the_hub_are_downloaded_whole_said_and_removed(serve, tmp_path, keep):
    for step, state in enumerate(walk(3), start=1):
        (tmp_path / f"step{step}").mkdir()
        torch.save(state, tmp_path / f"step{step}" / "pytorch_model.bin")
    hub = serve({f"step{step}": tmp_path / f"step{step}" for step in (1, 2, 3)})
    found = scan(REPOSITORY, revisions="step*", out=tmp_path / "out", keep=keep)
    assert found.findings == ()
    assert set(ranks(tmp_path / "out")["site"]) == set(SITES)
    downloads = read_events(tmp_path / "out").query("kind == 'download'")
    assert downloads["step"].tolist() == [1, 2, 3] and downloads["message"].str.contains("downloaded completely").all()
    assert sum(hub.sent.values()) == sum(
        (tmp_path / f"step{i}" / "pytorch_model.bin").stat().st_size for i in (1, 2, 3)
    )
    assert not (tmp_path / "out" / "downloads").exists()
    assert len(list((tmp_path / "cache").rglob("pytorch_model.bin"))) == (3 if keep else 0)


def test_state_dicts_in_any_form_and_naming(tmp_path):
    states = walk(4)
    save_file(states[0], tmp_path / "step1.safetensors")
    torch.save({"state_dict": states[1]}, tmp_path / "step2.ckpt")
    torch.save({f"module.{name}": tensor for name, tensor in states[2].items()}, tmp_path / "step3.pth")
    torch.save({"model": states[3]}, tmp_path / "step4.bin", _use_new_zipfile_serialization=False)
    found = scan(tmp_path, out=tmp_path / "out")
    assert kinds(found) == [(Fault.PREFIX, 3)] and found.sound
    assert ranks(tmp_path / "out")["site"].tolist() == [*SITES] * 4
    chosen = scan(tmp_path, out=tmp_path / "chosen", mlp_pattern=r"fc2\.weight")
    assert chosen.sound
    assert ranks(tmp_path / "chosen")["site"].unique().tolist() == [site.replace("fc1", "fc2") for site in SITES]


def test_a_series_that_is_broken_throughout_is_recorded(tmp_path):
    for step in (1, 2):
        save_malicious(tmp_path / f"step{step}.pt", tmp_path / "ran", "zip")
    found = scan(tmp_path, out=tmp_path / "out")
    assert kinds(found) == [(Fault.UNSAFE, 1), (Fault.UNSAFE, 2)]
    assert not (tmp_path / "ran").exists()
    again = scan(tmp_path, out=tmp_path / "out")
    assert (again.num_measured, again.num_known, again.not_loaded) == (0, 0, ("step1.pt", "step2.pt"))
    assert again.is_empty
    with pytest.raises(ValueError, match=r"nothing to draw.*`summary` says what is wrong"):
        again.plot()


def test_layers_that_show_no_lower_matrix_are_said(tmp_path):
    state = walk(1)[0]
    save_file(
        {name: tensor for name, tensor in state.items() if "layers.1.mlp" not in name}, tmp_path / "step1.safetensors"
    )
    scan(tmp_path / "step1.safetensors", out=tmp_path / "out")
    unseen = read_events(tmp_path / "out").query("kind == 'unseen'")
    assert unseen["site"].tolist() == ["layers.1"] and unseen["level"].tolist() == ["warning"]
    assert json.loads(unseen["evidence"].item()) == {"steps": [1]}


@pytest.mark.slow  # Ray's start, and that of its workers
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("cluster")
def test_a_scan_on_ray_loses_and_doubles_nothing_when_a_worker_is_killed(tmp_path, monkeypatch):
    scan(save_walk(tmp_path / "series", 3), out=tmp_path / "here")
    log = tmp_path / "log"

    def mortal(task):
        """Inspect a checkpoint; the first worker that has inspected the second is killed before it can say so."""
        found = inspect_checkpoint(task)
        is_first = not log.exists() or "2" not in log.read_text().split()
        with log.open("a") as file:
            file.write(f"{task.checkpoint.step}\n")
        if task.checkpoint.step == 2 and is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    monkeypatch.setattr("joma.probe.scanning.inspect_checkpoint", mortal)
    found = scan(tmp_path / "series", out=tmp_path / "ray", on="ray")
    assert sorted(log.read_text().split()) == ["1", "2", "2", "3"]
    assert (found.num_measured, found.findings, found.failures) == (3, (), {})
    pandas.testing.assert_frame_equal(values(tmp_path / "ray"), values(tmp_path / "here"), check_exact=False, rtol=1e-9)


def test_every_checkpoint_is_counted_once(tmp_path):
    save_walk(tmp_path, 3, suffix="pt")
    save_malicious(tmp_path / "step4.pt", tmp_path / "ran", "zip")
    torch.save({"state": torch.ones(3)}, tmp_path / "step5.pt")
    torch.save(walk(1)[0] | {"odd.weight": torch.ones(4, 4).to_sparse()}, tmp_path / "step6.pt")
    first = scan(tmp_path, out=tmp_path / "out")
    assert not first.is_empty and (first.num_measured, first.num_known) == (3, 0)
    assert (first.not_loaded, first.without_values) == (("step4.pt",), ("step5.pt",))
    assert list(first.failures) == ["step6.pt"] and not first.sound  # what nobody thought of does not end the scan
    again = scan(tmp_path, out=tmp_path / "out")
    assert (again.num_measured, again.num_known) == (0, 3)
    assert again.not_loaded == first.not_loaded and list(again.failures) == ["step6.pt"]
    torch.save({"embedding.weight": torch.ones(5)}, tmp_path / "step1.pt")  # values of an earlier file do not count
    last = scan(tmp_path, out=tmp_path / "out")
    assert (last.num_measured, last.num_known, last.without_values) == (0, 2, ("step1.pt", "step5.pt"))


OPTIONS = tuple(inspect.signature(scan).parameters)


def test_errors_name_options_and_keep_their_kind_and_what_the_system_says(tmp_path):
    save_file(walk(1)[0], tmp_path / "step1.safetensors")
    for settings, words in (
        ({"mlp_pattern": r"n\.\d"}, r"No matrix matches `--mlp-pattern=n\.\d`. Change the pattern."),
        ({"per_head": True}, "`--tokenizer`, `--window` and `--per-head` are for the entropy on a text. Pass `--text`"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)), options_named(OPTIONS):
            scan(tmp_path / "step1.safetensors", out=tmp_path / "out", **settings)
    with pytest.raises(UnknownNameError, match="There is no place named 'slurm'"), options_named(OPTIONS):
        raise UnknownNameError("place", "slurm", ["local"])
    with pytest.raises(NotADirectoryError) as caught, options_named(OPTIONS):
        raise NotADirectoryError(20, "`out` is no folder")
    assert caught.value.errno == 20 and "`out`" in str(caught.value)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run `joma scan` on the folder of the test; return its exit code and what it printed."""

    def run(*options, out="out"):
        monkeypatch.setattr("sys.argv", ["joma", "scan", str(tmp_path), "--out", str(tmp_path / out), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [((), 1, "0 measured now"), (("--mlp-pattern", "("), 2, "`--mlp-pattern`")],
    ids=["nothing measured", "no pattern"],
)
def test_a_scan_without_numbers_ends_with_an_error(tmp_path, command, options, code, words):
    save_malicious(tmp_path / "step1.pt", tmp_path / "ran", "zip")
    ended, said = command(*options)
    assert ended == code and words in said.out + said.err


def test_the_summary_has_every_layer_and_goes_into_json(trained, text, tmp_path):
    found = scan(trained, out=tmp_path / "out", text=text, window=32, num_windows=2)
    record = json.loads(json.dumps(found.as_dict()))["layers"]
    table = found.to_frame()
    assert {(each["metric"], each["layer"]) for each in record} == {
        (metric, layer)
        for metric in ("entropy", "stable_rank", "qk_stable_rank", "qk_spectral_norm")
        for layer in (0, 1)
    }
    for each in record:
        own = table[(table["metric"] == each["metric"]) & (table["layer"] == each["layer"]) & (table["head"] == -1)]
        curve = own.set_index("step")["value"]
        assert (each["first"], each["last"]) == (curve[5], curve[40])
        assert (each["lowest"], each["lowest_step"]) == (curve.min(), curve.idxmin())
    lines = found.summary().splitlines()
    assert len(lines) == 4 and str(found) == found.summary()
    assert found._repr_html_().count("<tr") == 1 + len(record)
    assert found.plot().spec is not None


def test_the_page_of_the_documentation_shows_what_is_printed(tmp_path, command):
    """The same columns and kinds of problems, whatever the numbers are."""
    name = "layers.0.attn.o_proj.weight"
    save_walk(tmp_path, 6, change=lambda step, state: state | {name: (step != 4) * state[name]})
    truncated = tmp_path / "step5.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-100])
    code, said = command()
    assert not code  # whatever the audit finds
    assert said.err.splitlines() == ["Scanning checkpoints: 0/6", "Scanning checkpoints: 6/6, step6.safetensors"]
    page = Path(__file__).parents[2].joinpath("docs", "scan.md").read_text()
    assert "joma scan checkpoints/" in page
    shown = page.split("```text\n")[1].split("```")[0]
    assert re.findall(r"^  step \d+  (\w+):", said.out, re.MULTILINE) == ["zeroed", "truncated"]
    assert "6 checkpoints: 5 measured now, 1 not loaded. Not sound:" in said.out
    kinds = re.findall(r"^  step \d+  ([\w ]+):", shown, re.MULTILINE)
    assert kinds and set(kinds) <= {fault.value for fault in Fault}
    for text in (said.out, shown):
        lines = text.splitlines()
        assert [line.split() for line in lines[:2]] == [line.split() for line in said.out.splitlines()[:2]]
        assert lines[-1].startswith("Saved to ") and "For charts: joma report " in lines[-1]


def test_the_product_of_queries_and_keys_is_that_of_the_matrices(trained, tmp_path):
    scan(trained / "checkpoint-40", out=tmp_path / "out")
    table = read(tmp_path / "out").set_index(["metric", "layer"])["value"]
    for layer in (0, 1):
        name = f"gpt_neox.layers.{layer}.attention.query_key_value.weight"
        heads = load_file(trained / "checkpoint-40" / "model.safetensors")[name].double().unflatten(0, (4, 3, 8))
        s = torch.linalg.svdvals(heads[:, 0].mT @ heads[:, 1])
        ranks = s.square().sum(dim=1) / s[:, 0].square()
        assert table["qk_stable_rank", layer] == pytest.approx(float(ranks.mean()), rel=1e-9)
        assert table["qk_spectral_norm", layer] == pytest.approx(float(s.max()), rel=1e-9)


@pytest.mark.parametrize("steps", ["0,500,1000", r"run_(\d+)", [0, 500, 1000]])
def test_steps_can_be_given(tmp_path, steps):
    for number, state in enumerate(walk(3)):
        save_file(state, tmp_path / f"a{9 + number}_run_{500 * number}_v{number}.safetensors")
    found = scan(tmp_path, out=tmp_path / "out", steps=steps)
    assert found.findings == () and ranks(tmp_path / "out")["step"].unique().tolist() == [0, 500, 1000]
    with pytest.raises(ValueError, match="`steps` must have 3 numbers"):
        scan(tmp_path, out=tmp_path / "other", steps="0,500")


def test_curves_of_a_series_are_one_though_a_prefix_is_missing(tmp_path):
    def named(step, state):
        return {name if step == 3 else f"bert.{name}": tensor for name, tensor in state.items()}

    save_walk(tmp_path, 4, change=named)
    found = scan(tmp_path, out=tmp_path / "out")
    assert kinds(found) == [(Fault.PREFIX, 3)] and found.sound
    assert set(ranks(tmp_path / "out").groupby("site").size()) == {4}
    assert scan(tmp_path, out=tmp_path / "out").num_known == 4


def test_escape_sequences_in_names_are_shown_as_text(tmp_path, command):
    for step, state in enumerate(walk(4), start=1):
        name = f"step{step}\x1b[2J\x9b31m.safetensors"
        save_file(
            {f"\x1b]0;x\x07{key}" if step == 2 else key: tensor for key, tensor in state.items()}, tmp_path / name
        )
    for options in ([], ["--json"]):
        _, said = command(*options, out=f"out{len(options)}")
        assert not {"\x1b", "\x07", "\x9b"} & set(said.out + said.err)
    assert len(json.loads(said.out)["findings"]) > 0


@pytest.mark.parametrize("room", [0, 2])
def test_a_full_disk_ends_a_scan_once(tmp_path, monkeypatch, room):
    """Rows that could not be written are not tried again when the program ends, which printed a stack."""
    save_walk(tmp_path, 3)
    at_exit, written = [], []
    registry = SimpleNamespace(register=at_exit.append, unregister=at_exit.remove)
    monkeypatch.setattr("joma.store.record.atexit", registry)

    def write_bytes(path, content):
        written.append(path)
        if len(written) > room:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    monkeypatch.setattr("joma.store.tables.write_bytes", write_bytes)
    with pytest.raises(OSError, match="No space"):
        scan(tmp_path, out=tmp_path / "out")
    assert at_exit == []


def test_a_folder_that_is_not_there_is_refused_before_torch_is_imported(tmp_path):
    code = (
        "import sys; import joma.cli\n"
        "try: joma.cli.main()\n"
        "except SystemExit as ended: print(ended.code, 'torch' in sys.modules)"
    )
    asked = ["scan", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(cli.BAD_INPUT), "False"] and "no file or folder" in done.stderr


def test_a_scan_without_a_folder_writes_next_to_where_it_is_called(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for parent in ("a", "b"):
        shutil.copytree(trained / "checkpoint-5", tmp_path / parent / "series" / "checkpoint-5")
    assert scan("a/series").folder == Path("series-scan")
    assert scan("a/series").num_known == 1
    with pytest.raises(ValueError, match=r"holds the scan of a.series\. Pass another `out`"):
        scan("b/series")
