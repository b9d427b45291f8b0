"""Whether the Hugging Face hub can be used from here; asked once a process, within seconds."""

import re
from functools import cache
from importlib.util import find_spec

EXTRA = "joma[hf]"
"""What to install for everything that builds on transformers."""
SECONDS = 3.0
"""How long the hub may take to answer."""
_ASKED = "EleutherAI/pythia-70m"
_ADDRESS = re.compile(r"""['"]?\w+://[^\s'"]*[^\s'".,:;)]['"]?""")


def transformers_missing() -> str:
    """Return what to install where transformers or the hub's client is not there, else nothing."""
    absent = [name for name in ("transformers", "huggingface_hub") if find_spec(name) is None]
    return f"It needs {' and '.join(absent)}. Install {EXTRA}." if absent else ""


@cache
def hub_missing() -> str:
    """Return in one line why the hub cannot be used here, nothing where it can; HF_HUB_OFFLINE counts as off."""
    if absent := transformers_missing():
        return absent
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 (an extra)

    from joma.probe.hub import HubError, hub_errors  # noqa: PLC0415

    if constants.HF_HUB_OFFLINE:
        return "It needs the Hugging Face hub, and HF_HUB_OFFLINE switches it off. Unset it."
    try:
        with hub_errors(_ASKED):
            HfApi().model_info(_ASKED, timeout=SECONDS)
    except HubError as error:
        return without_address(f"It needs the Hugging Face hub. {error}")
    return ""


def without_address(reason: str) -> str:
    """Return why the hub gave nothing as a verdict says it: the address where it was asked is no news to a reader.

    >>> without_address("The hub cannot be reached at https://a.mirror: timed out. Check the network.")
    'The hub cannot be reached at its address: timed out. Check the network.'
    """
    return _ADDRESS.sub("its address", reason)
