"""Windows of a text, and what can be wrong with text, tokenizer and model: one line each."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5Model

from joma.probe import text as probe_text
from joma.probe.findings import Fault, Flaw
from joma.probe.text import measure_text, windows_key, windows_of


def test_windows_are_the_start_of_the_text(trained, text):
    folder = trained / "checkpoint-5"
    windows = windows_of(text, folder, folder, window=16, num_windows=3)
    assert windows.shape == (3, 16)
    assert windows_of(text, folder, folder, window=None, num_windows=99).shape == (31, 64)  # 2000 bytes
    longer = windows_of(text, folder, folder, window=16, num_windows=5)
    assert torch.equal(longer[:3], windows)
    assert windows_key(longer) != windows_key(windows)


def test_text_of_which_a_token_is_many_characters_is_read_on(trained, text):
    """Sixteen characters a token, more than are read at first."""
    folder = text.parent / "words"
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    assert windows_of(text, trained / "checkpoint-5", folder, window=1, num_windows=1).tolist() == [[0]]


def test_what_does_not_fit_is_one_line(trained, text, tmp_path):
    folder = trained / "checkpoint-5"
    vocabulary = {chr(97 + i): 300 + i for i in range(26)} | {"[UNK]": 999}
    wide = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=wide, unk_token="[UNK]").save_pretrained(tmp_path / "wide")
    (tmp_path / "bare").mkdir()
    (tmp_path / "untaught").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "untaught")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config"}})
    )
    (tmp_path / "foreign" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "short.txt").write_text("too short")
    cases = [
        ((tmp_path / "nowhere.txt", folder, folder, 16), "There is no text"),
        (
            (tmp_path / "short.txt", folder, folder, 16),
            "shorter than one window: .* gives 9 tokens and a window has 16",
        ),
        ((text, folder, tmp_path / "wide", 16), "tokenizer does not fit the model: it gives token 999, and .* 256"),
        ((text, folder, tmp_path / "bare", 16), "There is no tokenizer in .*bare"),
        ((text, folder, tmp_path / "untaught", 16), "There is no tokenizer in .*untaught. Pass `tokenizer`"),
        ((text, tmp_path / "bare", folder, 16), "No model can be built from .*bare"),
        ((text, tmp_path / "foreign", folder, 16), "code that comes with a checkpoint is not run"),
        ((text, folder, folder, 65), "`window` must be at most 64"),
        ((text, folder, folder, 0), "`window` must be positive"),
    ]
    for (text_, config, tokenizer, window), match in cases:
        with pytest.raises((ValueError, OSError), match=match) as caught:
            windows_of(text_, config, tokenizer, window=window, num_windows=2)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_entropy_agrees_with_the_attention_that_the_model_gives_out(trained):
    folder = trained / "checkpoint-40"
    tokens = torch.randint(0, 256, (3, 24), generator=torch.Generator().manual_seed(0))
    rows, unseen = measure_text(folder, tokens, heads=True)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = model(tokens, output_attentions=True).attentions
    found = {(row.layer, row.head): row.value for row in rows if row.metric == "entropy"}
    for layer, p in enumerate(attentions):
        entropy = torch.special.entr(p.double()).sum(-1).mean((0, 2))  # windows and rows
        assert found[layer, -1] == pytest.approx(float(entropy.mean()), abs=1e-4)
        assert [found[layer, head] for head in range(4)] == pytest.approx(entropy.tolist(), abs=1e-4)
    assert unseen == []
    assert {row.metric for row in rows} >= {"entropy_fraction", "effective_keys", "first_key_mass", "max_logit"}
    assert {row.site for row in rows} == {f"gpt_neox.layers.{layer}.attention" for layer in range(2)}


def test_several_windows_at_a_time_are_those_one_by_one(trained, monkeypatch):
    tokens = torch.randint(0, 256, (5, 24), generator=torch.Generator().manual_seed(0))
    found = []
    for num_at_once in (1, 2):  # of five windows, the last part has one
        monkeypatch.setattr(probe_text, "_num_at_once", lambda device, length, num=num_at_once: num)
        rows, unseen = measure_text(trained / "checkpoint-40", tokens, heads=True)
        assert unseen == []
        found.append({(row.site, row.head, row.metric): row.value for row in rows})
    one_by_one, together = found
    assert together == pytest.approx(one_by_one, rel=1e-5, abs=1e-5)  # products of float32 in other batches


def test_a_forward_on_a_gpu_has_so_many_tokens_or_one_window():
    assert [probe_text._num_at_once("cuda", length) for length in (1, 128, 4096, 5000)] == [4096, 32, 1, 1]
    assert probe_text._num_at_once("cpu", 128) == 1


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_encoders_and_pairs_of_encoder_and_decoder(kind, tmp_path):
    sizes = {"vocab_size": 30, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16}
    if kind == "bert":
        model = BertModel(BertConfig(**sizes, intermediate_size=32), add_pooling_layer=False)
        expected = 2
    else:
        config = T5Config(
            vocab_size=30, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
        model = T5Model(config)
        expected = 6  # two of the encoder; of the decoder two on itself and two across
    model.save_pretrained(tmp_path)
    rows, _ = measure_text(tmp_path, torch.arange(24).reshape(2, 12), heads=False)
    assert len({row.site for row in rows if row.metric == "entropy"}) == expected


def test_a_checkpoint_without_all_of_the_model_has_no_entropy(series):
    folder = series / "checkpoint-5"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(Flaw, match="of its tensors are not in the checkpoint") as caught:
        measure_text(folder, tokens, heads=False)
    assert caught.value.kind is Fault.NO_ENTROPY
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Flaw, match="The text has token 256 and the model 256 embeddings"):
        measure_text(folder, tokens + 256, heads=False)
