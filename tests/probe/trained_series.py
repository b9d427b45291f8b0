"""A small GPT-NeoX trained by the Hugging Face Trainer on Python's documentation: a real series of checkpoints."""

from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

SAVE_STEPS = 5
NUM_STEPS = 40
STEPS = list(range(SAVE_STEPS, NUM_STEPS + 1, SAVE_STEPS))
LENGTH = 32
TEXT = "\n".join(topics.values())


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=alphabet[0])


def tiny_neox() -> GPTNeoXForCausalLM:
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPTNeoXForCausalLM(config)


def train_series(folder: Path) -> Path:
    """Train, and return the folder with checkpoint-5, checkpoint-10 and so on."""
    tokenizer = byte_tokenizer()
    ids = torch.tensor(tokenizer(TEXT[:40_000])["input_ids"])
    rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=NUM_STEPS,
        save_steps=SAVE_STEPS,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        warmup_steps=4,
        save_total_limit=None,
        save_only_model=True,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices only wait for each other's threads
    Trainer(model=tiny_neox(), args=arguments, train_dataset=data, processing_class=tokenizer).train()
    torch.set_num_threads(num_threads)
    return folder
