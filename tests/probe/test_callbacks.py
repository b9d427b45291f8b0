"""The same watch inside of Hugging Face's Trainer and of Lightning, in real trainings."""

import lightning
import loops
import models
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from joma.probe import HuggingFaceCallback, LightningCallback
from joma.store import info, read

pytestmark = [
    # Lightning advises on the number of workers and on loggers; the loop here is too small for either.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:You.re resuming from a checkpoint that ended before the epoch"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    # The Trainer pins memory for a GPU by default.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]


def texts(number=16):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, models.VOCABULARY, (number, 12), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def hf_train(folder, callbacks, *, resume_from=None, **changes):
    """Train a tiny GPT-2 for some steps, each of two batches."""
    model = loops.build("gpt2")
    settings = {
        "output_dir": str(folder / "trainer"), "max_steps": 6, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "logging_steps": 2, "report_to": [], "save_strategy": "no", "use_cpu": True,
        "disable_tqdm": True, "seed": 3, "learning_rate": 1e-2,
    }  # fmt: skip
    data = {"train_dataset": texts(), "eval_dataset": texts(4)}
    trainer = Trainer(model, TrainingArguments(**settings | changes), **data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume_from)
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_hugging_face(tmp_path):
    callback = HuggingFaceCallback(out=tmp_path / "run", every=2, measures="full")
    watched = hf_train(tmp_path, [callback])
    loops.assert_same(hf_train(tmp_path, []), watched)
    table = read(tmp_path / "run")
    assert sorted(set(table.query("metric == 'entropy'")["step"])) == [0, 2, 4]
    assert table.query("metric == 'gradient_norm'")["value"].gt(0).all()
    assert (table.query("step == 0 and metric == 'update_norm'")["value"] == 0).all()  # before the first update
    assert set(table.query("metric == 'entropy'")["site"]) == {"transformer.h.0.attn", "transformer.h.1.attn"}
    assert table.query("metric == 'loss'")["step"].tolist() == [2, 4, 6]
    assert table.query("metric == 'loss'")["value"].between(1, 10).all()
    assert info(tmp_path / "run").status == "finished"
    assert info(tmp_path / "run").about["seed"] == 3
    assert callback.watch.events().empty


def test_hugging_face_on_a_probe_batch_with_evaluation_in_between(tmp_path):
    callback = HuggingFaceCallback(every=3, probe_batch=models.inputs("gpt2"))
    changes = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1}
    loops.assert_same(hf_train(tmp_path, [], **changes), hf_train(tmp_path, [callback], **changes))
    assert sorted(set(callback.watch.frame().query("metric == 'entropy'")["step"])) == [0]


class Interrupting(TrainerCallback):
    """Ends the training as a bug of the user would."""

    def on_step_end(self, args, state, control, **kwargs):
        raise ZeroDivisionError


def test_a_callback_whose_training_was_interrupted_can_be_used_again(tmp_path):
    callback = HuggingFaceCallback(out=tmp_path / "run", every=1)
    with pytest.raises(ZeroDivisionError):
        hf_train(tmp_path, [callback, Interrupting()])
    first = callback.watch
    hf_train(tmp_path, [callback], max_steps=2)
    assert callback.watch is not first
    assert sorted(set(read(tmp_path / "run").query("metric == 'entropy'")["step"])) == [0, 1]


def test_hugging_face_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path, caplog):
    def train(name, **changes):
        callback = HuggingFaceCallback(out=tmp_path / name, every=1)
        return hf_train(tmp_path, [callback], **{"lr_scheduler_type": "constant"} | changes)

    whole = train("whole", save_strategy="steps", save_steps=4)
    train("run", max_steps=5)  # one step further than the checkpoint
    resumed = train("run", resume_from=str(tmp_path / "trainer" / "checkpoint-4"))
    loops.assert_same(whole, resumed)
    expected, found = (read(tmp_path / name).query("metric == 'entropy'") for name in ("whole", "run"))
    pandas.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))
    assert sorted(set(found["step"])) == list(range(6))
    (message,) = [record.message for record in caplog.records if record.name == "joma"]
    assert "starts again at step 4. Its next value overwrites what was recorded for steps 4 to 4" in message
    with pytest.raises(ValueError, match="with `seed` 3; this one has `seed` 4"):
        train("run", seed=4)


class Module(lightning.LightningModule):
    """A model inside of a module whose own forward never runs."""

    def __init__(self, bad_step=-1):
        super().__init__()
        self.model = models.HandWritten(dropout=0.2)
        self.bad_step, self.losses = bad_step, []

    def training_step(self, batch, number):
        if number == self.bad_step:
            raise ZeroDivisionError
        loss = nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, number):
        self.model(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def lightning_train(callbacks, bad_step=-1, *, max_steps=4, save_to=None, resume_from=None):
    torch.manual_seed(0)
    module = Module(bad_step)
    tokens = torch.stack([each["input_ids"] for each in texts()])
    trainer = lightning.Trainer(
        max_steps=max_steps, accumulate_grad_batches=2, val_check_interval=2, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(module, DataLoader(tokens, batch_size=2), DataLoader(tokens, batch_size=4), ckpt_path=resume_from)
    if save_to is not None:
        trainer.save_checkpoint(save_to)
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_lightning(tmp_path):
    callback = LightningCallback(out=tmp_path, every=2, measures="full")
    watched = lightning_train([callback])
    loops.assert_same(lightning_train([]), watched)
    table = read(tmp_path)
    assert sorted(set(table.query("metric == 'entropy'")["step"])) == [0, 2]
    assert set(table.query("metric == 'entropy'")["site"]) == {"model.blocks.0", "model.blocks.1"}
    # Every step has two batches; the loss is that of the second.
    assert table.query("metric == 'loss'")["value"].tolist() == pytest.approx(callback.watch._model.root.losses[1::4])
    assert table.query("metric == 'gradient_norm'")["value"].gt(0).all()
    assert info(tmp_path).status == "finished"
    assert callback.watch.events().empty


def test_lightning_goes_on_from_a_checkpoint(tmp_path, caplog):
    def train(max_steps, **places):
        lightning_train([LightningCallback(out=tmp_path / "run", every=1)], max_steps=max_steps, **places)
        return [record.message for record in caplog.records if record.name == "joma"]

    checkpoint = tmp_path / "two.ckpt"
    assert train(2, save_to=checkpoint) == []
    first = read(tmp_path / "run")
    assert train(4, resume_from=checkpoint) == []  # after the last recorded step
    assert read(tmp_path / "run").query("step < 2").equals(first)
    (message,) = train(3, resume_from=checkpoint)
    assert "starts again at step 2. Its next value overwrites what was recorded for steps 2 to 3" in message
    table = read(tmp_path / "run")
    assert table.query("step < 2").equals(first) and sorted(set(table["step"])) == [0, 1, 2]


def test_lightning_on_a_probe_batch(tmp_path):
    tokens = loops.batch("hand_written", 9)["tokens"]
    callback = LightningCallback(every=2, probe_batch=lambda module: module.model(tokens))
    loops.assert_same(lightning_train([]), lightning_train([callback]))
    assert sorted(set(callback.watch.frame().query("metric == 'entropy'")["step"])) == [0, 2]


def test_a_lightning_training_that_fails_ends_the_run_as_failed(tmp_path):
    callback = LightningCallback(out=tmp_path, every=1)
    with pytest.raises(ZeroDivisionError):
        lightning_train([callback], bad_step=3)
    assert info(tmp_path).status == "failed"
    assert sorted(set(read(tmp_path).query("metric == 'entropy'")["step"])) == [0]
