"""joma.watch as a callback of Lightning's Trainer.

```python
trainer = lightning.Trainer(..., callbacks=[LightningCallback(out="runs/first", every=100)])
```
"""

import os
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from joma.errors import import_extra
from joma.probe.watching import Watch, watch

import_extra("lightning", "lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

SEED = "PL_GLOBAL_SEED"  # where `lightning.seed_everything` leaves the seed


class LightningCallback(Callback):
    """Watches the module that Lightning trains; takes what `joma.watch` takes besides the model.

    Step s is the model after s updates, as in the names of checkpoints; it is measured before the next update. A
    `probe_batch` for a module whose `forward` is not its training is a function of the module. The seed is the one of
    `seed_everything`.
    """

    def __init__(self, **settings: Any) -> None:
        self.watch: Watch | None = None  # the watch of the last or current training
        self._settings = settings
        self._loss: Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the module."""
        seed = os.environ.get(SEED)
        self.watch = watch(pl_module, **{"seed": None if seed is None else int(seed)} | self._settings)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Keep the loss; with accumulated gradients it is divided by their number."""
        self._loss = loss.detach() * trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Measure while weights, attention and gradients belong together."""
        if self.watch is not None:
            self.watch.step(trainer.global_step, loss=self._loss)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach."""
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detach from a training that failed or was interrupted."""
        if self.watch is not None:
            self.watch.close("failed")
