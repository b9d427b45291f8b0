"""Attention of a checkpoint on a text: its own configuration and tokenizer, windows of tokens, entropy per layer.

Models are built by transformers from files on this machine. Code that a checkpoint brings along is never run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from joma.errors import import_extra, positive
from joma.formatting import counted
from joma.probe.findings import Fault, Flaw, first_sentence, some
from joma.probe.measurement import Readings, Row
from joma.probe.measures import attention
from joma.probe.structure import Unseen
from joma.probe.taps import tap

DEFAULT_WINDOW = 512  # tokens of a window, or as many as the model takes if that is less
DEFAULT_NUM_WINDOWS = 8
RENAMED_DTYPE = 5  # version of transformers since which `torch_dtype` is `dtype`
MOST_TOKENS = 4096  # of one forward on a GPU
_CHARACTERS_PER_TOKEN = 8
"""Of the text as much is read first as will do for most tokenizers; then twice as much, and so on."""
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_UNUSED = ("pooler", "lm_head", "classifier")  # modules that attention does not depend on, which a checkpoint may lack


def windows_key(windows: Int[Tensor, "windows length"]) -> str:
    """Return what changes when the windows do."""
    return blake2b(windows.numpy().tobytes() + str(windows.shape).encode(), digest_size=16).hexdigest()


def windows_of(
    text: Path, config: Path, tokenizer: Path, *, window: int | None, num_windows: int
) -> Int[Tensor, "windows length"]:
    """Cut the start of a text into windows of tokens that the model takes; says in one line why that cannot be done.

    `config` and `tokenizer` are folders with those of the model.
    """
    positive("num_windows", num_windows)
    if not text.is_file():
        raise FileNotFoundError(f"There is no text {text}. Pass a file of plain text.")
    settings = load_config(config)
    length = _window_length(settings, window)
    ids = _tokens(text, tokenizer, num_windows * length)
    if len(ids) < length:
        raise ValueError(
            f"The text is shorter than one window: {text} gives {counted(len(ids), 'token')} and a window has "
            f"{length}. Pass a longer text, or a smaller `window`."
        )
    num_embeddings = getattr(settings.get_text_config(), "vocab_size", None)
    if num_embeddings is not None and max(ids) >= num_embeddings:
        raise ValueError(
            f"The tokenizer does not fit the model: it gives token {max(ids)}, and the model has {num_embeddings} "
            "embeddings. Pass `tokenizer`, the folder of the right one."
        )
    count = min(num_windows, len(ids) // length)
    return torch.tensor(ids[: count * length]).reshape(count, length)


def _loaded(kind: Any, folder: Path, **options: Any) -> Any:
    """Load a model, a configuration or a tokenizer from this machine, without code that comes with it."""
    with quiet_transformers():
        return kind.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **options)


def load_config(folder: Path) -> Any:
    """Return the configuration of a model; refuses one that needs code of its own."""
    import_extra("transformers", "hf")
    from transformers import AutoConfig

    try:
        return _loaded(AutoConfig, folder)
    except Exception as error:  # transformers raises whatever a foreign file makes it raise
        raise ValueError(
            f"No model can be built from {folder}: {first_sentence(error)}. Entropy needs a config.json of an "
            "architecture that transformers has; code that comes with a checkpoint is not run."
        ) from None


def measure_text(
    folder: Path | None, windows: Int[Tensor, "windows length"], *, heads: bool
) -> tuple[list[Row], list[Unseen]]:
    """Build the model in a folder, run the windows through it, and return entropy and its companions per layer.

    Raises `Flaw` when the model cannot be built from the checkpoint.
    """
    if folder is None:
        raise Flaw(Fault.NO_ENTROPY, "There is no config.json.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _build(folder).to(device).eval()
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and int(windows.max()) >= embedding.num_embeddings:
        message = f"The text has token {int(windows.max())} and the model {embedding.num_embeddings} embeddings."
        raise Flaw(Fault.NO_ENTROPY, message)
    readings = Readings()
    unseen: list[Unseen] = []
    with (
        torch.no_grad(),
        tap(
            model,
            lambda call: readings.add(call.label, "attention", call.layer, attention(call), {}),
            on_unseen=unseen.append,
        ),
    ):
        for tokens in windows.to(device).split(_num_at_once(device, windows.shape[1])):
            more = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
            is_pair = getattr(model.config, "is_encoder_decoder", False)
            model(input_ids=tokens, **({"decoder_input_ids": tokens} if is_pair else more))
    return list(readings.rows(heads=heads)), unseen


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from writing on the terminal: what matters of it becomes a finding."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _build(folder: Path) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM, __version__

    precision = {"dtype" if int(__version__.split(".")[0]) >= RENAMED_DTYPE else "torch_dtype": torch.float32}
    names = load_config(folder).architectures or [""]
    kind = AutoModelForCausalLM if names[0].endswith(("ForCausalLM", "LMHeadModel")) else AutoModel
    try:
        model, loading = _loaded(kind, folder, **precision, weights_only=True, output_loading_info=True)
    except Exception as error:  # as above
        raise Flaw(Fault.NO_ENTROPY, f"No model can be built: {first_sentence(error)}.") from None
    missing = sorted(name for name in loading["missing_keys"] if not any(part in name for part in _UNUSED))
    if missing:
        message = f"No model can be built: {len(missing)} of its tensors are not in the checkpoint, {some(missing)}."
        raise Flaw(Fault.NO_ENTROPY, message, sites=tuple(missing))
    return model


def _num_at_once(device: str, length: int) -> int:
    """Windows of one forward: many small ones keep a GPU busy, and a CPU is busy with one."""
    return 1 if device == "cpu" else max(1, MOST_TOKENS // length)


def _window_length(config: Any, window: int | None) -> int:
    settings = config.get_text_config()
    limits = [getattr(settings, name) for name in _POSITIONS if isinstance(getattr(settings, name, None), int)]
    limit = min(limits, default=None)
    if window is None:
        return DEFAULT_WINDOW if limit is None else min(DEFAULT_WINDOW, limit)
    positive("window", window)
    if limit is not None and window > limit:
        raise ValueError(f"`window` must be at most {limit}, the positions that the model has, got {window}.")
    return window


def _tokens(text: Path, folder: Path, wanted: int) -> list[int]:
    """Tokenize as much of the start of a text as is wanted."""
    from transformers import AutoTokenizer

    try:
        tokenizer = _loaded(AutoTokenizer, folder)
    except Exception as error:  # as above
        raise ValueError(
            f"There is no tokenizer in {folder} that can be used: {first_sentence(error)}. Pass `tokenizer`, a folder."
        ) from None
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made by transformers where there is none
        raise ValueError(f"There is no tokenizer in {folder}. Pass `tokenizer`, a folder with tokenizer.json.")
    num_characters = _CHARACTERS_PER_TOKEN * wanted
    with text.open(encoding="utf-8", errors="replace") as file:
        read = file.read(num_characters)
        while True:
            with quiet_transformers():
                ids = tokenizer(read, add_special_tokens=False)["input_ids"]
            more = file.read(len(read)) if len(ids) <= wanted else ""
            if not more:
                return ids[:wanted]
            read += more
