"""joma.watch as a callback of Hugging Face's Trainer.

```python
trainer = Trainer(model, ..., callbacks=[HuggingFaceCallback(out="runs/first", every=100)])
```
"""

from typing import Any

from joma.errors import import_extra
from joma.probe.watching import Watch, watch

import_extra("transformers", "hf")

from transformers import TrainerCallback  # noqa: E402


class HuggingFaceCallback(TrainerCallback):
    """Watches the model that the Trainer trains; takes what `joma.watch` takes besides the model.

    Step s is the model after s updates, as in the names of checkpoints; it is measured before the next update. Of a
    step with accumulated gradients the first forward pass is measured. The loss is the one that the Trainer logs, the
    seed the one it was given.
    """

    def __init__(self, **settings: Any) -> None:
        self.watch: Watch | None = None  # the watch of the last or current training
        self._settings = settings

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Attach to the model; a watch that an interrupted training left is closed."""
        if self.watch is not None:
            self.watch.close("failed")
        self.watch = watch(model, **{"seed": args.seed} | self._settings)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure while weights, attention and gradients belong together."""
        if self.watch is not None:
            self.watch.step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take the loss of training over."""
        if self.watch is not None and logs is not None and "loss" in logs:
            self.watch.record(state.global_step, "loss", logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach."""
        if self.watch is not None:
            self.watch.close()
