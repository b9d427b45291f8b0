"""The tensors of one checkpoint, read one at a time and without building a model.

Files are mapped: a tensor costs memory when it is looked at. `Weights.check` reads every byte once more and compares
it with the checksums that a file carries. Pickles are loaded with `weights_only` alone; one that calls for anything
else is refused by name, and so is one whose instructions or tensors are too many for its size.
"""

import io
import json
import os
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from joma.formatting import counted
from joma.probe.findings import Fault, Flaw, first_sentence, some
from joma.probe.fingerprint import TensorPrint

SAFETENSORS = ".safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
BUNDLES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files that make a folder one checkpoint, in the order in which transformers looks for them."""
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(\.\w+)")
_NO_WEIGHTS = re.compile(
    r"optimizer|scheduler|rng_state|random_states|training_args|scaler|sampler|dataloader|.*optim_states", re.IGNORECASE
)
_NESTS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights")
_WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DistributedDataParallel and torch.compile put before every name
_LFS_POINTER = b"version https://git-lfs.github.com"
_ZIP_MAGIC = b"PK\x03\x04"
HEADER_PREFIX = 8  # bytes at the start of a safetensors file that hold the length of its header
MAX_HEADER = 100_000_000  # longest header of a safetensors file that the library takes
_NUM_PICKLES = 8  # pickles in a row in files of PyTorch before 1.6, and then some
MOST_INSTRUCTIONS = 1_000_000
"""Of the pickles of one file: 25,000 tensors with the state of their optimizer have half of them."""
MOST_PICKLE_BYTES = 2**26
MOST_NAMES = 2**26
"""Characters of the names of all entries of a pickle's dicts, each entry with 64 more: a million entries at most."""
_ENTRY_SIZE = 64
_MOST_LEVELS = 100  # of `model`, `state_dict` and the like in each other
MOST_SHARDS = 10_000
_MOST_SHARING = 8  # bytes of all tensors over the bytes of their file; weights that are tied count twice
_CHUNK = 2**17  # bytes read at once: a larger buffer is new memory from the system each time, and half as fast
_LOCAL_HEADER = 30
"""Bytes of a header inside an archive before the name of the entry; the lengths of name and extra are its last."""
_COUNTERS = ("step", "global_step", "global_steps", "iteration", "iter", "num_updates", "epoch")
"""Keys under which a training keeps how far it is, the surest first."""
_TRAINER_STATE = "trainer_state.json"
MOST_STEPS = 10**15

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "U16": "uint16", "U32": "uint32", "U64": "uint64", "C64": "complex64",
}  # fmt: skip
"""Names of PyTorch for the types of safetensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A checkpoint open for reading, or one file of it."""

    tensors: Mapping[str, TensorPrint]  # shapes and types; their content was not looked at
    read: Callable[[str], Tensor]  # returns one tensor by its name
    check: Callable[[], list[Flaw]] = list
    """Reads all bytes, compares them with the checksums in the files, and returns what differs."""
    counters: Mapping[str, float] = field(default_factory=dict)  # step, epoch and the like that it holds
    flaws: tuple[Flaw, ...] = ()  # what is wrong with it, though the rest can be read
    digests: Mapping[str, str] = field(default_factory=dict)
    """Content hashes of its files, where they are known without reading them, as on the hub."""
    folder: Path | None = None  # where its files lie on this machine, if they are a folder with a configuration
    is_local: bool = True  # whether looking at a few bytes of a tensor is cheap
    notes: tuple[str, ...] = ()  # remarks on how it was opened
    prefix: str = ""  # what wrappers put before every name; the names here are without it


class FileSet(NamedTuple):
    """The files that make up a checkpoint."""

    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # shards that are named but not there
    expected: frozenset[str] = frozenset()  # tensors that the index names


def identity_of(checkpoint: Path) -> str:
    """Return what changes when a checkpoint does: names, sizes and dates of its weights and configuration."""
    paths = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
    files = [path for path in paths if path.is_file() and (is_weight_file(path.name) or path.suffix == ".json")]
    seen = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return blake2b(repr((checkpoint.name, seen)).encode(), digest_size=16).hexdigest()


def choose_files(names: Collection[str], read_text: Callable[[str], str], *, loose: bool = True) -> FileSet | None:
    """Choose the files of a folder that make up its weights; None when there are none.

    Known names and numbered shards come first; without them, and if `loose`, all safetensors files count, or else all
    pickles that are not known to be something else.
    """
    for name in BUNDLES:
        if name in names:
            return _indexed(names, name, read_text) if name.endswith(".json") else FileSet((name,))
    weights = sorted(name for name in names if is_weight_file(name))
    shards = [match for match in map(_SHARD.fullmatch, weights) if match]
    if shards:
        stem, number, count, suffix = shards[0].groups()
        if len(count) > len(str(MOST_SHARDS)) or int(count) > MOST_SHARDS:
            message = f"{shards[0][0]} is one of {count} shards by its name. At most {MOST_SHARDS} are read."
            raise Flaw(Fault.UNREADABLE, message, file=shards[0][0])
        return _file_set(names, [f"{stem}-{i:0{len(number)}d}-of-{count}{suffix}" for i in range(1, int(count) + 1)])
    safe = [name for name in weights if name.endswith(SAFETENSORS)]
    return FileSet(tuple(safe or weights)) if loose and weights else None


def is_weight_file(name: str) -> bool:
    """Whether a file's name is one of weights, and not of an optimizer or the like.

    >>> is_weight_file("step100.pt"), is_weight_file("optimizer.pt"), is_weight_file("config.json")
    (True, False, False)
    """
    return name.endswith((SAFETENSORS, *PICKLED)) and not _NO_WEIGHTS.match(name)


def open_local(path: Path) -> Weights:
    """Open a file, or the files of a folder; raises `Flaw` when nothing of it can be read."""
    if not path.is_dir():
        return gather([lambda: open_file(path)])
    names = [entry.name for entry in path.iterdir() if entry.is_file()]
    chosen = choose_files(names, lambda name: (path / name).read_text(encoding="utf-8"))
    if chosen is None:
        raise Flaw(Fault.MISSING_FILE, f"{path.name} holds no weights.", files=sorted(names))
    openers = [lambda name=name: open_file(path / name) for name in chosen.files]
    weights = gather(openers, chosen, folder=path if (path / "config.json").exists() else None)
    try:
        state = json.loads((path / _TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return weights
    return replace(weights, counters={**weights.counters, **counters_in(state)})


def gather(openers: Iterable[Callable[[], Weights]], chosen: FileSet | None = None, **about: Any) -> Weights:
    """Open files and put them together; what cannot be opened is a flaw, and if nothing can, the flaw is raised."""
    present, missing, expected = chosen or FileSet()
    flaws: list[Flaw] = []
    if missing:
        message = f"Missing {len(missing)} of {len(present) + len(missing)} shards: {some(missing)}."
        flaws.append(Flaw(Fault.MISSING_FILE, message, file=missing[0], present=list(present)))
    files: list[Weights] = []
    for opener in openers:
        try:
            files.append(opener())
        except Flaw as flaw:
            flaws.append(flaw)
    owners = {name: file for file in files for name in file.tensors}
    if flaws and not owners:
        raise flaws[0]
    twice = next((name for file in files for name in file.tensors if owners[name] is not file), None)
    if twice is not None:
        message = f"Several files hold the tensor {twice}. Merge model-parallel files before the scan."
        raise Flaw(Fault.UNREADABLE, message, files=list(present))
    absent = sorted(expected - owners.keys())
    if absent and not flaws:
        message = f"The index names {counted(len(absent), 'tensor')} that no shard holds: {some(absent)}."
        flaws.append(Flaw(Fault.MISSING_TENSOR, message, sites=tuple(absent)))
    prefix = ""
    while wrapper := next((each for each in _WRAPPERS if all(name.startswith(prefix + each) for name in owners)), ""):
        prefix += wrapper
    return Weights(
        tensors={name.removeprefix(prefix): file.tensors[name] for name, file in owners.items()},
        read=lambda name: owners[prefix + name].read(prefix + name),
        check=lambda: [flaw for file in files for flaw in file.check()],
        flaws=tuple(flaws),
        counters={key: value for file in files for key, value in file.counters.items()},
        prefix=prefix,
        **about,
    )


def _flaw(path: Path, kind: Fault, what: str, **evidence: Any) -> Flaw:
    return Flaw(kind, f"{path.name} {what}", file=path.name, **evidence)


def open_file(path: Path) -> Weights:
    """Open one file of weights; raises `Flaw` when it cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise _flaw(path, Fault.UNREADABLE, f"cannot be read: {error.strerror}.") from None
    if start == _LFS_POINTER:
        what = "is a Git LFS pointer: the weights were not fetched. Run `git lfs pull`."
        raise _flaw(path, Fault.MISSING_FILE, what)
    if not start:
        raise _flaw(path, Fault.TRUNCATED, "is empty.", bytes=0)
    if path.suffix == SAFETENSORS:
        return _open_safetensors(path)
    is_zip = zipfile.is_zipfile(path)
    if not is_zip and start.startswith(_ZIP_MAGIC):
        what = "is truncated: the archive has no directory at its end."
        raise _flaw(path, Fault.TRUNCATED, what, bytes=path.stat().st_size)
    return _open_pickle(path, is_zip=is_zip)


def _open_safetensors(path: Path) -> Weights:
    try:
        file = safe_open(path, framework="pt")  # maps it; the library checks that its header fits the file
    except SafetensorError as error:
        size = path.stat().st_size
        with path.open("rb") as broken:
            read_header(path.name, size, lambda start, stop: broken.read(stop - start))  # from the start on
        raise _flaw(path, Fault.UNREADABLE, f"cannot be read: {first_sentence(error)}.", bytes=size) from None
    slices = {name: file.get_slice(name) for name in file.keys()}
    tensors = {
        name: TensorPrint(shape=tuple(each.get_shape()), dtype=dtype_name(each.get_dtype()))
        for name, each in slices.items()
    }
    return Weights(tensors=tensors, read=file.get_tensor, counters=counters_in(file.metadata()))


def _open_pickle(path: Path, *, is_zip: bool) -> Weights:
    """Load a file of `torch.save` with `weights_only`, mapped where its format allows."""
    entries = _check_archive(path) if is_zip else []
    saved = _load_pickle(path, is_zip=is_zip)
    try:
        state = state_dict_of(saved)
    except (OverflowError, RecursionError):
        raise _flaw(path, Fault.UNSAFE, "was not read: its dicts lead to more names than a model has.") from None
    if not state:
        raise _flaw(path, Fault.UNREADABLE, "holds no state dict.")
    dense = [tensor for tensor in state.values() if tensor.layout is torch.strided]
    size, limit = sum(tensor.nbytes for tensor in dense), _MOST_SHARING * path.stat().st_size
    if size > limit or any(tensor.untyped_storage().nbytes() > limit for tensor in dense):
        what = f"was not read: its tensors have {size} bytes, and the file {path.stat().st_size}."
        raise _flaw(path, Fault.UNSAFE, what)
    tensors = {
        name: TensorPrint(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
        for name, tensor in state.items()
    }

    def check() -> list[Flaw]:
        found = {entry.filename: (entry.file_size, _crc(path, entry)) for entry in entries}
        bad = {entry.filename for entry in entries if found[entry.filename][1] != entry.CRC}
        if not bad:
            return []

        def content(tensor: Tensor) -> tuple[int, int]:
            stored = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            return len(stored), zlib.crc32(stored.numpy().data)

        contents = {found[name] for name in bad}
        sites = [name for name, tensor in state.items() if content(tensor) in contents]
        failing = [name for name in found if name in bad]
        message = f"{counted(len(sites), 'tensor')} of {path.name} with a wrong checksum: {some(sites or failing)}."
        return [Flaw(Fault.DAMAGED, message, sites=tuple(sites), file=path.name, entries=failing)]

    return Weights(tensors=tensors, read=state.__getitem__, check=check, counters=counters_in(saved))


def _check_archive(path: Path) -> list[zipfile.ZipInfo]:
    """Return the entries of an archive with tensors; refuses what is compressed, too large or fails its checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED:
                what = "is compressed, which PyTorch cannot map. Save it again with torch.save."
                raise _flaw(path, Fault.COMPRESSED, what)
            if entry.filename.endswith(".pkl") and entry.file_size > MOST_PICKLE_BYTES:
                what = f"was not loaded: its pickle has {entry.file_size} bytes without the tensors."
                raise _flaw(path, Fault.UNSAFE, what)
            if "/data/" not in entry.filename and _crc(path, entry) != entry.CRC:
                what = f"is damaged: {entry.filename} fails its checksum."
                raise _flaw(path, Fault.DAMAGED, what, entries=[entry.filename])
    except (zipfile.BadZipFile, NotImplementedError, struct.error, UnicodeDecodeError) as error:
        what = f"is damaged: the directory of its archive cannot be read ({first_sentence(error)})."
        raise _flaw(path, Fault.DAMAGED, what) from None
    return entries


def _crc(path: Path, entry: zipfile.ZipInfo) -> int:
    crc = 0
    with path.open("rb") as file:
        file.seek(entry.header_offset + _LOCAL_HEADER - 4)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        left = entry.file_size
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            crc = zlib.crc32(chunk, crc)
            left -= len(chunk)
    return crc


def counters_in(saved: Any) -> dict[str, float]:
    """Return step, epoch and the like from what a training saved.

    >>> counters_in({"model": {}, "epoch": 3, "global_step": "1200", "lr": 0.1})
    {'global_step': 1200.0, 'epoch': 3.0}
    """
    found = {}
    for key in _COUNTERS if isinstance(saved, Mapping) else ():
        value = saved.get(key)
        if isinstance(value, Tensor) and value.numel() == 1 and value.layout is torch.strided:
            value = value.item()
        if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value):
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_STEPS:
            found[key] = float(value)
    return found


def state_dict_of(saved: Any) -> dict[str, Tensor]:
    """Find the tensors of a model in what was saved: nested under `state_dict`, `model` and the like, or in dicts.

    >>> list(state_dict_of({"epoch": 3, "model": {"h": {"0": {"weight": torch.zeros(2)}}}, "optimizer": {}}))
    ['h.0.weight']
    """
    room = MOST_NAMES
    tensors: dict[str, Tensor] = {}

    def named(nested: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield tensors; few dicts that hold each other lead to endlessly many names, which is an `OverflowError`."""
        nonlocal room
        for key, value in nested.items():
            name = f"{prefix}{key}"
            room -= len(name) + _ENTRY_SIZE
            if room < 0:
                raise OverflowError(f"The names of all entries have over {MOST_NAMES} characters.")
            if isinstance(value, Tensor):
                yield name, value
            elif isinstance(value, Mapping):
                yield from named(value, f"{name}.")

    while isinstance(saved, Mapping):
        room -= MOST_NAMES // _MOST_LEVELS  # a dict may be its own `model`
        nests = (saved[key] for key in _NESTS if isinstance(saved.get(key), Mapping))
        nest = next((each for each in nests if any(True for _ in named(each))), None)
        tensors, saved = dict(named(saved)) if nest is None else {}, nest
    return tensors


def dtype_name(code: str) -> str:
    """Return PyTorch's name for a type of safetensors."""
    return DTYPES.get(code, code.lower())


def _indexed(names: Collection[str], name: str, read_text: Callable[[str], str]) -> FileSet:
    """Read an index of shards; whatever else it holds is a flaw of this checkpoint, and not the end of a scan."""
    try:
        index = json.loads(read_text(name))
    except (ValueError, RecursionError) as error:
        raise Flaw(Fault.UNREADABLE, f"{name} is not JSON: {first_sentence(error)}.", file=name) from None
    if not isinstance(index, dict):
        raise Flaw(Fault.UNREADABLE, f"{name} holds no JSON object.", file=name)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(file, str) for file in shards.values()):
        message = f"{name} has no weight_map from names of tensors to names of files."
        raise Flaw(Fault.UNREADABLE, message, index=sorted(index))
    return _file_set(names, sorted(set(shards.values())), frozenset(shards))


def _file_set(names: Collection[str], wanted: Sequence[str], expected: frozenset[str] = frozenset()) -> FileSet:
    there = tuple(name for name in wanted if name in names)
    return FileSet(there, tuple(name for name in wanted if name not in names), expected)


def read_header(name: str, size: int, read: Callable[[int, int], bytes]) -> tuple[dict[str, Any], int]:
    """Return the entries of a safetensors file and where its data begins; refuse one that is shorter than it says.

    Args:
        name: Of the file, for messages.
        size: Its bytes.
        read: Returns the bytes from one position to another.
    """

    def demand(needed: int) -> None:
        if size < needed:
            message = f"{name} is truncated: it has {size} bytes and needs {needed}."
            raise Flaw(Fault.TRUNCATED, message, file=name, bytes=size, needed=needed)

    demand(HEADER_PREFIX)
    length = int.from_bytes(read(0, HEADER_PREFIX), "little")
    if length > MAX_HEADER:
        raise Flaw(Fault.UNREADABLE, f"{name} is no safetensors file.", file=name, bytes=size)
    data = HEADER_PREFIX + length
    demand(data)
    try:
        header = json.loads(read(HEADER_PREFIX, data))
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        stated = [(entry["data_offsets"][1], entry["shape"], entry["dtype"]) for entry in entries.values()]
        end = data + max(stop for stop, _, _ in stated)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        message = f"{name} has no header that lists tensors."
        raise Flaw(Fault.UNREADABLE, message, file=name, bytes=size) from None
    demand(end)
    return entries, data


def _load_pickle(path: Path, *, is_zip: bool) -> Any:
    named = _globals_of(path, is_zip=is_zip)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of pickle protocols that it then refuses
            return torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        named = re.findall(r"GLOBAL ([\w.]+)", str(error)) or named
        if not named:
            raise _flaw(path, Fault.UNREADABLE, "is no pickle of tensors.") from None
        what = f"was not loaded: the pickle calls for {some(named)}, which could run code."
        raise _flaw(path, Fault.UNSAFE, what, calls=named) from None
    except Exception as error:  # whatever a broken file makes the loader do
        kind = Fault.TRUNCATED if "EOF" in str(error) or isinstance(error, EOFError) else Fault.UNREADABLE
        what = f"cannot be read: {first_sentence(error)}."
        raise _flaw(path, kind, what, bytes=path.stat().st_size) from None


def _globals_of(path: Path, *, is_zip: bool) -> list[str]:
    """List what a pickle calls for besides tensors, by reading its instructions and running none of them.

    Refuses a pickle with so many instructions that loading it would not end.
    """
    found: dict[str, None] = {}
    strings: list[str] = []
    count = 0
    with path.open("rb") as file:
        stream: IO[bytes] = file
        if is_zip:
            with zipfile.ZipFile(file) as archive:
                pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
                stream = io.BytesIO(b"".join(map(archive.read, pickles)))
        try:
            for _ in range(_NUM_PICKLES):
                for instruction, argument, _ in pickletools.genops(stream):
                    count += 1
                    if count > MOST_INSTRUCTIONS:
                        what = f"was not loaded: its pickle has over {MOST_INSTRUCTIONS} instructions."
                        raise _flaw(path, Fault.UNSAFE, what)
                    if instruction.name == "GLOBAL":
                        found[str(argument).replace(" ", ".")] = None
                    elif instruction.name == "STACK_GLOBAL":
                        found[".".join(strings[-2:])] = None
                    elif isinstance(argument, str):
                        strings.append(argument)
        except (ValueError, UnicodeDecodeError):  # the end, or no pickle at all
            pass
    if "builtins.bytearray" in found:  # one number makes it as long as one likes
        raise _flaw(path, Fault.UNSAFE, "was not loaded: the pickle calls for bytearray.")
    return [name for name in found if not name.startswith(("torch.", "collections."))]
