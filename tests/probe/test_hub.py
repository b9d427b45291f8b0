"""The real client against a hub on loopback: only the wanted bytes are sent, and every failure is one line."""

import socket

import huggingface_hub.constants
import pytest
import torch
from loopback_hub import REPOSITORY
from safetensors.torch import save_file
from states import LOWER
from test_checkpoint import assert_holds, write_shards

from joma.probe.findings import Fault, Flaw
from joma.probe.hub import HubError, list_revisions
from joma.probe.series import find_series


def write(folder, state):
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def opened(tmp_path):
    """Open the first revision that is served."""

    def open_first(*, whole=False, keep=False):
        (revision,) = list_revisions(REPOSITORY, "step1")
        return revision.open(whole=whole, downloads=tmp_path / "downloads", keep=keep)

    return open_first


def header_size(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_revisions_are_listed_by_pattern_and_sorted_as_numbers(serve, opened, tmp_path, state):
    folder = write(tmp_path / "x", state)
    serve(dict.fromkeys(["main", "step1000", "step20", "step3", "other1"], folder))
    checkpoints, _ = find_series([REPOSITORY], revisions="step*")
    assert [checkpoint.step for checkpoint in checkpoints] == [3, 20, 1000]
    with pytest.raises(ValueError, match=r"No revision of org/model fits 'epoch\*'\. It has main, other1"):
        list_revisions(REPOSITORY, "epoch*")


def test_every_type_survives_the_way(serve, opened, tmp_path):
    tensors = {
        "a": torch.randn(3, 2).bfloat16(),
        "b": torch.randn(3).to(torch.float8_e4m3fn),
        "c": torch.tensor([True]),
        "d": torch.tensor(7),
        "e": torch.zeros(0, 3),
    }
    serve({"step1": write(tmp_path / "x", tensors)})
    with opened() as weights:
        for name, tensor in tensors.items():
            read = weights.read(name)
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(read.double(), tensor.double())


def test_shards_and_a_missing_one(serve, opened, tmp_path, state):
    files = write_shards(tmp_path / "x", state)
    hub = serve({"step1": tmp_path / "x"})
    with opened() as weights:
        assert_holds(weights, state)
        assert set(weights.digests) == set(files)
    (tmp_path / "x" / files[2]).unlink()
    hub.sent.clear()
    with opened() as weights:
        (flaw,) = weights.flaws
        assert (flaw.kind, flaw.evidence["file"]) == (Fault.MISSING_FILE, files[2])


def test_a_truncated_file_is_found_by_its_header_alone(serve, opened, tmp_path, state):
    folder = write(tmp_path / "x", state)
    path = folder / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - 100])
    hub = serve({"step1": folder})
    with pytest.raises(Flaw, match="truncated") as caught, opened():
        pass
    assert (caught.value.evidence["bytes"], caught.value.evidence["needed"]) == (size - 100, size)
    assert hub.sent == {"step1/model.safetensors": header_size(path)}
    for content in (b"abc", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0hi"):
        path.write_bytes(content)
        with pytest.raises(Flaw), opened():
            pass


def test_what_is_kept_lies_in_the_cache_and_is_not_fetched_again(serve, opened, tmp_path, state):
    hub = serve({"step1": write(tmp_path / "x", state)})
    with opened(whole=True, keep=True) as weights:
        assert_holds(weights, state)
        assert weights.folder is not None and (weights.folder / "config.json").exists()
    assert list((tmp_path / "cache").rglob("model.safetensors"))
    assert not (tmp_path / "downloads").exists()
    hub.sent.clear()
    with opened() as weights:
        assert weights.is_local
        assert_holds(weights, state)
    assert not hub.sent


def test_a_server_that_sends_no_parts_is_found_out_before_it_sends_the_whole(serve, opened, tmp_path, state):
    serve({"step1": write(tmp_path / "x", state)}, ranges=False)
    with opened() as weights:
        assert_holds(weights, state)
        assert "the server sends no ranges of files" in weights.notes[0]
    assert not list((tmp_path / "downloads").iterdir())


def test_a_place_that_expires_is_asked_for_again(serve, opened, tmp_path, state):
    hub = serve({"step1": write(tmp_path / "x", state)})
    with opened() as weights:
        hub.expired = 1
        assert torch.equal(weights.read(LOWER[0]), state[LOWER[0]])


def test_the_token_goes_to_the_hub_and_not_to_its_storage(serve, opened, tmp_path, state, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub = serve({"step1": write(tmp_path / "x", state)})
    with opened() as weights:
        weights.read(LOWER[0])
    authorized = {path.split("/")[1]: bool(authorization) for _, path, authorization in hub.requests}
    assert authorized == {"api": True, "org": True, "storage": False}


def test_no_network_no_repository_and_refusals_are_one_line(hub_at, serve, opened, tmp_path, state, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hub_at(f"http://127.0.0.1:{unused.getsockname()[1]}")  # nobody listens
        with pytest.raises(HubError, match=r"The hub cannot be reached at http://127.*Check the network\.$"):
            list_revisions(REPOSITORY, "step*")
    hub = serve({"step1": write(tmp_path / "x", state)})
    with pytest.raises(HubError, match="The hub has no repository org/other, or it is private"):
        list_revisions("org/other", "step*")
    hub.failing.add("step1")
    with pytest.raises(HubError, match="The hub refused a request for org/model"), opened():
        pass
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE switches it off"):
        list_revisions(REPOSITORY, "step*")


@pytest.mark.parametrize(
    ("file", "message"),
    [("README.md", "step1 holds no weights"), ("model.safetensors.index.json", "holds no JSON object")],
    ids=["no weights", "no index"],
)
def test_a_revision_that_holds_no_weights(serve, opened, tmp_path, file, message):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / file).write_text("[1]")
    serve({"step1": tmp_path / "x"})
    with pytest.raises(Flaw, match=message), opened():
        pass
