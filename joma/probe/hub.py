"""Revisions of a repository on the Hugging Face hub, of which only the wanted tensors are fetched.

A safetensors file begins with the length of its header and the header, which says where each tensor lies: two short
requests, and one for each tensor. Nothing else is sent, and nothing touches the disk. Pickles have no such order; a
revision that has nothing else is downloaded completely and removed after use.
"""

import fnmatch
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from safetensors.torch import load
from torch import Tensor

from joma.errors import import_extra
from joma.probe import checkpoint
from joma.probe.checkpoint import HEADER_PREFIX, SAFETENSORS, Weights, dtype_name, read_header
from joma.probe.findings import Fault, Flaw, first_sentence, some
from joma.probe.fingerprint import TensorPrint

SECONDS = 30.0  # how long the hub may be silent before a request is made again
_EXPIRED = (401, 403)
_PARTIAL = 206
_MODEL_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")
"""Configuration and tokenizer, which building a model needs as well as the weights."""


class HubError(ConnectionError):
    """The hub did not answer, or not with what was asked for."""


class RangesRefusedError(HubError):
    """The server sends complete files only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRevision:
    """A revision of a repository, pinned to a commit."""

    repository: str
    name: str
    commit: str

    def identity(self) -> str:
        """Return what changes when the checkpoint does: the commit."""
        return f"{self.repository}@{self.commit}"

    @contextmanager
    def open(self, *, whole: bool, downloads: Path, keep: bool) -> Iterator[Weights]:
        """Open the weights where they are, or download them: if `whole` says so, or if nothing else can be done.

        Downloads lie below `downloads` and are removed when the context ends; with `keep` they go to the hub's own
        cache and stay. What is in that cache already is read from there.
        """
        with hub_errors(self.repository):
            listing = list_files(self)  # size and content hash of every file
            chosen = checkpoint.choose_files(listing, self._read_text)
        if chosen is None:
            raise Flaw(Fault.MISSING_FILE, f"{self.name} holds no weights.", files=sorted(listing))
        digests = {name: listing[name][1] for name in chosen.files}
        is_safe = all(name.endswith(SAFETENSORS) for name in chosen.files)
        remote = self._remote(chosen, listing) if is_safe and not whole else None
        if remote is not None:
            yield replace(remote, digests=digests)
            return
        names = [*chosen.files, *(_model_files(listing) if whole else ())]
        with hub_errors(self.repository):
            folder = _download(self, names, None if keep else downloads / self.commit)
        try:
            size = sum(listing[name][0] for name in chosen.files)
            reason = "the server sends no ranges of files" if is_safe else "it has no safetensors"
            note = f"{self.name} was downloaded completely ({some(chosen.files)}, {size} bytes): {reason}."
            yield replace(checkpoint.open_local(folder), digests=digests, notes=() if whole else (note,))
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _remote(self, chosen: checkpoint.FileSet, listing: Mapping[str, tuple[int, str]]) -> Weights | None:
        """Open safetensors where they are; None when ranges are refused."""
        from huggingface_hub import try_to_load_from_cache

        cached = {name: try_to_load_from_cache(self.repository, name, revision=self.commit) for name in chosen.files}
        local = {name: Path(path) for name, path in cached.items() if isinstance(path, str)}
        openers = [
            partial(checkpoint.open_file, local[name])
            if name in local
            else partial(_open_remote, self, name, listing[name][0])
            for name in cached
        ]
        try:
            return checkpoint.gather(openers, chosen, is_local=len(local) == len(cached))
        except RangesRefusedError:
            return None

    def _read_text(self, name: str) -> str:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        url = hf_hub_url(self.repository, name, revision=self.commit)
        response = http_backoff("GET", url, headers=build_hf_headers(), timeout=SECONDS)
        hf_raise_for_status(response)
        return response.text


def _open_remote(revision: HubRevision, name: str, size: int) -> Weights:
    """Read the header of a safetensors file on the hub; its tensors are fetched one by one."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    url, location = hf_hub_url(revision.repository, name, revision=revision.commit), ""

    def request(start: int, stop: int) -> bytes:
        host = urlsplit(location).netloc
        at_home = host == urlsplit(url).netloc
        headers = build_hf_headers(token=None if at_home else False)  # the token is the hub's, not its storage's
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with http_stream_backoff("GET", location, headers=headers, timeout=SECONDS) as response:
            hf_raise_for_status(response)
            if response.status_code != _PARTIAL:
                raise RangesRefusedError(f"{host} answers a request for a range with the complete file.")
            content = response.read()
        if len(content) != stop - start:
            raise HubError(f"The hub sent {len(content)} bytes of {stop - start} of {url}. Try again.")
        return content

    def fetch(start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`; the location expires after an hour and is then asked for again."""
        nonlocal location
        with hub_errors(revision.repository):
            if location:
                try:
                    return request(start, stop)
                except HfHubHTTPError as error:
                    if error.response.status_code not in _EXPIRED:
                        raise
            location = get_hf_file_metadata(url, timeout=SECONDS, retry_on_errors=True).location
            return request(start, stop)

    entries, data = read_header(name, size, fetch)

    def read(tensor: str) -> Tensor:
        entry = entries[tensor]
        start, stop = entry["data_offsets"]
        content = fetch(data + start, data + stop) if stop > start else b""
        header = json.dumps({tensor: entry | {"data_offsets": [0, stop - start]}}).encode()
        # a file of this one tensor, so that the library decodes its type
        return load(len(header).to_bytes(HEADER_PREFIX, "little") + header + content)[tensor]

    tensors = {
        key: TensorPrint(shape=tuple(each["shape"]), dtype=dtype_name(each["dtype"])) for key, each in entries.items()
    }
    return Weights(tensors=tensors, read=read)


def list_revisions(repository: str, pattern: str) -> list[HubRevision]:
    """Return the branches and tags of a repository whose names fit a pattern such as `step*`."""
    import_extra("huggingface_hub", "hf")
    from huggingface_hub import HfApi

    with hub_errors(repository):
        refs = HfApi().list_repo_refs(repository)
    found = {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}
    fitting = {name: commit for name, commit in found.items() if fnmatch.fnmatchcase(name, pattern)}
    if not fitting:
        raise ValueError(f"No revision of {repository} fits {pattern!r}. It has {some(sorted(found), limit=5)}.")
    return [HubRevision(repository=repository, name=name, commit=commit) for name, commit in fitting.items()]


def list_files(revision: HubRevision) -> dict[str, tuple[int, str]]:
    """Return size and content hash of the files at the root of a revision."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    entries = HfApi().list_repo_tree(revision.repository, revision=revision.commit)
    return {
        entry.path: (entry.size, entry.blob_id if entry.lfs is None else entry.lfs.sha256)
        for entry in entries
        if isinstance(entry, RepoFile)
    }


def download_tokenizer(revision: HubRevision, folder: Path) -> Path:
    """Download configuration and tokenizer of a revision into a folder."""
    with hub_errors(revision.repository):
        return _download(revision, _model_files(list_files(revision)), folder)


def _model_files(names: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in _MODEL_FILES)]


def _download(revision: HubRevision, names: Sequence[str], folder: Path | None) -> Path:
    """Download files into a folder, or into the hub's cache when that is None; going on with what is there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import tqdm

    # a progress bar that is not shown: the scan shows its own
    silent = type("Silent", (tqdm,), {"__init__": lambda self, *_, **__: tqdm.__init__(self, disable=True)})
    paths = [
        Path(hf_hub_download(revision.repository, name, revision=revision.commit, local_dir=folder, tqdm_class=silent))
        for name in names
    ]
    return folder if folder is not None else paths[0].parent


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Say in one line why the hub gave nothing."""
    from huggingface_hub import constants, errors

    # The base of all errors of the client's HTTP library, whichever that is.
    transport: type[Exception] = next(kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    try:
        yield
    except errors.OfflineModeIsEnabled:
        reason = f"{repository} needs the hub, and HF_HUB_OFFLINE switches it off. Unset it."
    except errors.GatedRepoError:
        reason = f"{repository} asks for consent. Give it on its page, and log in with `hf auth login`."
    except errors.RepositoryNotFoundError:
        reason = f"The hub has no repository {repository}, or it is private. Check the name, or log in."
    except errors.HfHubHTTPError as error:
        reason = f"The hub refused a request for {repository}: {first_sentence(error)}."
    except (transport, errors.LocalEntryNotFoundError, errors.FileMetadataError) as error:
        reason = f"The hub cannot be reached at {constants.ENDPOINT}: {first_sentence(error)}. Check the network."
    else:
        return
    raise HubError(reason)
