"""Records such as `watch` and `scan` write, made up: entropy that drops and bounces, ranks that fall, and trouble."""

import json

import numpy as np
import pandas as pd

from joma.page.simulation import RECORD
from joma.store import open_run
from joma.store.files import write_text
from joma.theory.simulation import simulate

EVERY = 50
HOSTILE = "<script>alert(1)</script>\"'</script><!--<img src=x onerror=alert(1)>\u2028\u2029&amp;%{y}"
"""Ends a script, an attribute and a line, if it is let."""
FLAG = "residual 0.09 of the power iteration"
ALARM = "Attention entropy has collapsed at step 1000 in layer 2 (h.2.attn): 0.11 nats."
EXCEPTION = "ZeroDivisionError: division by zero"


def drop_and_bounce(steps, layer, num_layers, rng):
    """Entropy in nats that falls from 3.5 and comes back, the higher the layer the more."""
    x = steps / steps.max()
    dip = 1.2 * np.exp(-(((x - 0.25) / 0.15) ** 2))
    return 3.5 + 0.3 * layer / num_layers - 0.8 * (1 - np.exp(-6 * x)) - dip + 0.01 * rng.normal(size=steps.size)


def watched(
    folder,
    *,
    seed=0,
    num_layers=6,
    num_steps=41,
    status="finished",
    trouble=True,
    heads=0,
    config=None,
    metrics=(),
    name="h",
):
    """Write a run as `watch` does; return its folder."""
    rng = np.random.default_rng(seed)
    steps = np.arange(num_steps) * EVERY
    settings = {"seed": seed, "learning_rate": 1e-3, "measures": ["entropy", "ranks"], "alarm": {"patience": 3}}
    about = {"model": "GPT2LMHeadModel", "num_parameters": 124439808}
    with open_run(folder, kind="watch", config=settings | (config or {}), about=about, flush_seconds=1e9) as run:
        for layer in range(num_layers):
            entropy = drop_and_bounce(steps, layer, num_layers, rng)
            rank = 40 - 20 * steps / steps.max() + layer + 0.1 * rng.normal(size=steps.size)
            place = {"site": f"transformer.{name}.{layer}.attn", "kind": "attention", "layer": layer}
            matrix = {"site": f"transformer.{name}.{layer}.mlp.c_fc.weight", "kind": "mlp", "layer": layer}
            for step, value, other in zip(steps.tolist(), entropy.tolist(), rank.tolist(), strict=True):
                run.add(step, "entropy", value, **place)
                run.add(step, "entropy_fraction", value / 6.24, **place)
                for head in range(heads):
                    run.add(step, "entropy", value + 0.1 * head, head=head, **place)
                is_bad = trouble and layer == 1 and step in (500, 550)
                run.add(step, "stable_rank", other * (3 if is_bad else 1), flag=FLAG if is_bad else "", **matrix)
                for metric in metrics:
                    run.add(step, metric, value * rng.uniform(0.9, 1.1), **place)
        for step in steps.tolist():
            run.add(step, "loss", 10.8 * np.exp(-step / 900) + 3 + 0.02 * rng.normal(), kind="model")
            run.add(step, "seconds", 0.025, kind="cost")
        if trouble:
            run.add(int(steps[:13][-1]), "stable_rank", np.nan, flag="nothing but NaN", **matrix)
            _write_trouble(run, place["site"])
        run.close(status)
    return folder


def trained(folder, *, seed, lr=1e-3, num_layers=3, fails_at=None):
    """Write a run as `train` does, one that diverges at a step if need be; return its folder."""
    rng = np.random.default_rng(seed)
    steps = np.arange(0, 201 if fails_at is None else fails_at, 10)
    config = {"model": {"depth": num_layers}, "optimiser": {"lr": lr}, "seed": seed}
    with open_run(folder, kind="train", config=config, flush_seconds=1e9) as run:
        for step in steps.tolist():
            loss = 5 + 4 * np.exp(-step / 60) + 0.01 * rng.normal()
            run.add(step, "loss", loss, site="validation", kind="loss")
            if step:
                run.add(step, "loss", loss - 1, site="training", kind="loss")
            for layer in range(num_layers):
                where = {"site": f"blocks.{layer}.attention", "kind": "attention", "layer": layer}
                run.add(step, "entropy", 3 - np.exp(-(((step - 80) / 40) ** 2)), **where)
        run.event(int(steps[-1]), "effects", "attention entropy: flat", site="blocks.0.attention")
        if fails_at is not None:
            run.event(fails_at, "diverged", f"The loss was no longer finite at step {fails_at}.", level="error")
        run.close("finished" if fails_at is None else "failed")
    return folder


def _write_trouble(run, site):
    run.event(0, "unseen", "attention set to flash_attention_2", level="warning", site="vision.blocks.0")
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in measure\n' * 3
    for step in (100, 150, 200):
        run.event(step, "exception", EXCEPTION, level="error", site=site, evidence={"trace": trace})
    evidence = {"kind": "collapse", "layer": 2, "fraction": 0.021, "since": 900}
    run.event(1000, "alarm", ALARM, level="warning", site="transformer.h.2.attn", evidence=evidence)


def scanned(folder, *, num_layers=4, num_checkpoints=18):
    """Write a record as `scan` does: steps that double, a checkpoint that belongs elsewhere; return its folder."""
    rng = np.random.default_rng(3)
    config = {"sources": ["EleutherAI/pythia-70m"], "revisions": "step*", "text": None, "keep": False}
    with open_run(folder, kind="scan", config=config, flush_seconds=1e9) as run:
        for index, step in enumerate([0, *(2**power for power in range(num_checkpoints - 1))]):
            is_bad = step == 64
            for layer in range(num_layers):
                rank = 60 - 2.5 * (num_checkpoints if is_bad else index) + layer + 0.2 * rng.normal()
                place = {"site": f"gpt_neox.layers.{layer}.mlp.dense_h_to_4h.weight", "kind": "mlp", "layer": layer}
                flag = "out of place" if is_bad else ""
                run.add(step, "stable_rank", rank, flag=flag, **place)
                run.add(step, "spectral_norm", 1 + 0.2 * index + 0.1 * layer, flag=flag, **place)
            run.add(step, "seconds", 1.5, kind="cost")
            run.event(step, "unseen", "no text was given")
        _write_findings(run)
    return folder


def _write_findings(run):
    message = "The weights under step 64 belong to step 65536: they are 3.2 from step 32 and 3.1 from step 128."
    evidence = {"finding": "out of place", "sites": [], "steps": {"before": 32, "after": 128}, "across": 0.4}
    run.event(64, "audit", message, level="error", evidence=evidence)
    run.event(-1, "audit", "Step 256 is missing.", level="warning", evidence={"finding": "gap", "sites": []})
    run.event(8, "audit", "An old finding.", evidence={"withdrawn": True})


def large(folder, *, num_layers, num_steps, metrics):
    """Write a record of many values at once; return its folder."""
    open_run(folder, kind="watch", config={}).close()
    step, layer, metric = (
        axis.ravel() for axis in np.meshgrid(range(num_steps), range(num_layers), range(len(metrics)), indexing="ij")
    )
    value = 3 - np.exp(-(((step / num_steps - 0.3) / 0.1) ** 2)) + 0.01 * layer
    table = pd.DataFrame({"step": step, "site": "", "kind": "attention", "layer": layer.astype(np.int32)})
    table["site"] = np.array([f"transformer.h.{index}.attn" for index in range(num_layers)])[layer]
    table = table.assign(head=np.int32(-1), metric=np.array(metrics)[metric], value=value + 0.0, flag="")
    (folder / "metrics").mkdir(exist_ok=True)
    table.to_parquet(folder / "metrics" / "00000001.parquet", index=False)
    return folder


def simulated(folder):
    """Write the record of a simulation, without its pictures; return its folder."""
    run = simulate(flow="model", num_components=2, num_points=5)
    write_text(folder / RECORD, json.dumps(run.as_dict()))
    return folder
