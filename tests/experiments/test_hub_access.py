"""Why the hub cannot be used, in one line; asked once a process."""

import socket

import huggingface_hub.constants
import pytest

from joma.experiments import hub_access
from joma.probe.hub import HubError


@pytest.fixture(autouse=True)
def asked_anew():
    hub_access.hub_missing.cache_clear()
    yield
    hub_access.hub_missing.cache_clear()
    huggingface_hub.close_session()


def test_offline_mode_is_respected_without_a_request(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", None)
    assert hub_access.hub_missing() == ("It needs the Hugging Face hub, and HF_HUB_OFFLINE switches it off. Unset it.")


def test_a_hub_that_cannot_be_reached_says_so(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    missing = hub_access.hub_missing()
    assert missing.startswith("It needs the Hugging Face hub. The hub cannot be reached at its address: ")
    assert missing.endswith("Check the network.") and "127.0.0.1" not in missing


def test_a_reason_without_an_address_stays_as_it_is(monkeypatch):
    def refuse(*_, **__):
        raise HubError("org/model asks for consent. Give it on its page.")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    assert hub_access.hub_missing() == (
        "It needs the Hugging Face hub. org/model asks for consent. Give it on its page."
    )


def test_it_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, timeout: asked.append(timeout))
    assert hub_access.hub_missing() == hub_access.hub_missing() == ""
    assert asked == [hub_access.SECONDS]


def test_without_transformers_it_names_the_extra(monkeypatch):
    monkeypatch.setattr(hub_access, "find_spec", lambda name: None if name == "transformers" else object())
    assert hub_access.hub_missing() == "It needs transformers. Install joma[hf]."
