"""Which forward passes count as training: validation of any style is passed over, training in eval mode is not."""

from contextlib import nullcontext

import loops
import models
import pytest
import torch

from joma.probe.watch import watch

SHORT = 3
"""Tokens of the validation batch: its entropy lies below that of the training batch."""


def build():
    """Build the same model again and again; without dropout a validation does not move the random numbers either."""
    torch.manual_seed(0)
    return models.HandWritten()


def entropies(model, *, validate=lambda model: None, calls=lambda model, batch: model(**batch), mode=None):
    """Entropy of every step and layer of a loop that validates before each training forward."""
    with watch(model, every=1, measures="entropy", alarm=False) as seen:
        for step in range(3):
            validate(model)
            if mode is not None:
                model.train(mode)
            calls(model, loops.batch("hand_written", step))
            seen.step(step)
    return seen.frame().query("metric == 'entropy'")["value"].tolist()


def by_parts(model, batch):
    """Call the model's parts one by one, and never the model itself."""
    x = model.embedding(batch["tokens"])
    for block in model.blocks:
        x = block(x)
    return model.head(x)


def validation(*, evaluates, gradients, calls=lambda model, batch: model(**batch)):
    """Return a validation on a short batch that ends in training mode."""

    def validate(model):
        model.train(not evaluates)
        with nullcontext() if gradients else torch.no_grad():
            calls(model, {"tokens": loops.batch("hand_written", 50)["tokens"][:, :SHORT]})
        model.train()

    return validate


@pytest.mark.parametrize(("evaluates", "gradients"), [(True, False), (True, True), (False, False)])
def test_validation_of_any_style_leaves_the_values_alone(evaluates, gradients):
    plain = entropies(build())
    assert len(plain) == 3 * models.LAYERS
    assert entropies(build(), validate=validation(evaluates=evaluates, gradients=gradients)) == plain


@pytest.mark.parametrize("gradients", [True, False])
def test_validation_by_parts_in_eval_mode_leaves_the_values_alone(gradients):
    validate = validation(evaluates=True, gradients=gradients, calls=by_parts)
    plain = entropies(build(), calls=by_parts)
    assert len(plain) == 3 * models.LAYERS
    assert entropies(build(), validate=validate, calls=by_parts) == plain


def test_a_validation_that_raises_does_not_silence_the_training():
    def validate(model):
        with torch.no_grad(), pytest.raises(IndexError):
            model(torch.tensor([[models.VOCABULARY]]))

    assert entropies(build(), validate=validate) == entropies(build())


def test_a_model_trained_in_eval_mode_is_measured():
    def validate(model):
        with torch.no_grad():
            model(loops.batch("hand_written", 50)["tokens"][:, :SHORT])

    plain = entropies(build())
    assert entropies(build().eval(), validate=validate) == plain
    assert entropies(build().eval(), validate=validate, calls=by_parts) == plain


def test_a_model_attached_in_eval_mode_and_trained_in_training_mode():
    """As `from_pretrained` gives it: from the first forward in training mode on, eval mode is validation."""

    def validate_later(model):
        if model.training:
            validation(evaluates=True, gradients=True)(model)

    plain = entropies(build())
    assert entropies(build().eval(), validate=validate_later, mode=True) == plain


def test_a_model_put_into_eval_mode_after_attaching_is_told():
    model = build()
    with watch(model, every=1, measures="entropy") as seen:
        loops.loss_of(model.eval(), loops.batch("hand_written", 0)).backward()
        seen.step()
    assert "in training mode" in seen.events()["message"].item()
    assert seen.frame().query("metric == 'entropy'").empty


def test_a_validation_that_is_interrupted_does_not_silence_the_training():
    def interrupted(model):
        def stop(*_):
            raise KeyboardInterrupt

        handle = model.blocks[-1].register_forward_pre_hook(stop)
        with torch.no_grad(), pytest.raises(KeyboardInterrupt):
            model(**loops.batch("hand_written", 50))
        handle.remove()

    assert entropies(build(), validate=interrupted) == entropies(build())
