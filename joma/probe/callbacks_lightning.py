"""joma.watch as a callback of Lightning's Trainer.

```python
trainer = lightning.Trainer(..., callbacks=[LightningCallback(out="runs/first", every=100)])
```
"""

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from joma.probe.watching import Watch, watch

SEED = "PL_GLOBAL_SEED"
"""Where `lightning.seed_everything` leaves the seed."""


class LightningCallback(Callback):
    """Watches the module that Lightning trains; takes what `joma.watch` takes besides the model.

    Steps are Lightning's global steps, counted from 1. A `probe_batch` for a module whose `forward` is not its training
    is a function of the module. The seed is the one of `seed_everything`.
    """

    def __init__(self, **settings: Any) -> None:
        """Keep the settings until training begins."""
        self.watch: Watch | None = None
        """The watch of the last or current training."""
        self._settings = settings
        self._last = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the module."""
        seed = os.environ.get(SEED)
        self.watch = watch(pl_module, **{"seed": None if seed is None else int(seed)} | self._settings)
        self._last = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a step, once the optimizer has made one: with accumulated gradients that takes several batches."""
        if self.watch is not None and trainer.global_step != self._last:
            self._last = trainer.global_step
            self.watch.step(trainer.global_step, loss=outputs.get("loss") if isinstance(outputs, dict) else outputs)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach."""
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detach from a training that failed or was interrupted."""
        if self.watch is not None:
            self.watch.close("failed")
