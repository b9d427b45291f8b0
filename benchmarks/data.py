"""Sampled data against plain Python, on one core: `python benchmarks/data.py`.

The rivals make a batch of 128 as the paper's public scripts do, sample by sample and node by node with NumPy's
generator. Each line is a ratio of samples a second measured in this run, rival and joma by turns, the fastest of a few
each. The goal, 200 times, is for a pack of runs: one run alone is bound by the start of some fifty small operations.
"""

import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core, before torch loads its threads

import numpy as np
import torch
from rank import machine

from joma.data.hierarchy import Hierarchy
from joma.data.latent_trees import TreeSampler, class_patterns
from joma.randomness import run_keys
from joma.theory.latent_tree import LatentTree, regular_tree

BATCH = 128
TABLE_1_RUNS = 60
PACKS = ((1, BATCH), (20, BATCH), (TABLE_1_RUNS, BATCH), (1, 4096))
"""Runs and samples a run."""
GOAL_PACK = (TABLE_1_RUNS, BATCH)
GOAL = 200.0
PUBLIC_SECONDS = 2.4e-3
"""A batch of Table 1 in the public scripts, on another machine."""
ROUNDS, REPEATS = 3, 5
SLACK = 1.5


def naive_hierarchy_batch(hierarchy: Hierarchy, length: int, generator: np.random.Generator) -> np.ndarray:
    """A batch of Table 1, each class expanded down by itself."""
    members = [sets.numpy() for sets in hierarchy.members]
    rows = np.full((BATCH, length), hierarchy.num_tokens - 1)
    for row in rows:
        on = {int(generator.integers(hierarchy.num_classes))}
        for sets in reversed(members):
            on = {int(member) for thing in on for member in sets[thing]}
        row[length - len(on) :] = sorted(on)
    return rows


def naive_tree_batch(tree: LatentTree, generator: np.random.Generator) -> np.ndarray:
    """A batch of HBLT(ρ), node by node."""
    values = np.zeros((BATCH, tree.num_nodes), dtype=np.int64)
    tops = {int(node): place for place, node in enumerate(tree.tops)}
    for row in values:
        label = generator.choice(tree.class_probabilities.size, p=tree.class_probabilities)
        for node in range(1, tree.num_nodes):
            if node in tops:
                row[node] = generator.random() >= tree.zero_given_class[label, tops[node]]
            else:
                row[node] = row[tree.parents[node]] ^ (generator.random() < (1 - tree.rho[node]) / 2)
    return values[:, tree.leaves]


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fastest(*works: Callable[[], object]) -> list[float]:
    """Run all by turns, so that a busy moment hits each alike, and keep the fastest of each."""
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for place, work in enumerate(works):
            best[place] = min(best[place], *(seconds(work) for _ in range(REPEATS)))
    return best


def compare(title: str, rival: Callable[[], object], makers: dict[str, Callable[[torch.Tensor, int], object]]) -> bool:
    """Print one line for each maker and pack; say whether the first maker missed the goal on the pack of Table 1."""
    print(title)
    missed = False
    for number, (name, make) in enumerate(makers.items()):
        for num_runs, batch in PACKS:
            keys = run_keys(range(num_runs))
            slow, fast = fastest(rival, lambda keys=keys, batch=batch, make=make: make(keys, batch))
            rate = num_runs * batch / fast
            ratio = rate * slow / BATCH
            aimed = number == 0 and (num_runs, batch) == GOAL_PACK
            print(
                f"  {name:10s} {num_runs:3d} x {batch:4d}  {rate / 1e6:7.2f} million a second  {ratio:7.0f}x "
                f"(rival {slow * 1e3:.2f} ms a batch of {BATCH}){f', goal {GOAL:g}x' if aimed else ''}; "
                f"{rate * PUBLIC_SECONDS / BATCH:.0f}x the public {PUBLIC_SECONDS * 1e3:g} ms"
            )
            missed |= aimed and ratio * SLACK < GOAL
    return missed


def hierarchy() -> bool:
    """Table 1, its first and its largest setting."""
    missed = False
    for setting in ({}, {"num_latents": (20, 30), "num_children": 3, "num_classes": 50}):
        drawn = Hierarchy.draw(0, **setting)
        generator = np.random.default_rng(0)
        missed |= compare(
            f"hierarchy of Table 1, {drawn.num_classes} classes, sets of {drawn.members[0].shape[1]}",
            lambda drawn=drawn, generator=generator: naive_hierarchy_batch(drawn, drawn.sequences.shape[1], generator),
            {
                "counts": lambda keys, batch, drawn=drawn: drawn.class_counts(keys, 1, batch),
                "classes": lambda keys, batch, drawn=drawn: drawn.classes(keys, 1, batch),
            },
        )
    return missed


def trees() -> bool:
    """HBLT(0.8) with two classes, small and larger."""
    missed = False
    for depth in (3, 5):
        tree = regular_tree(depth, 2, 0.8, class_probabilities=[0.5, 0.5], zero_given_class=class_patterns(2, 2))
        sampler, generator = TreeSampler.of(tree), np.random.default_rng(0)
        missed |= compare(
            f"latent tree of depth {depth}, {tree.num_nodes} nodes, {sampler.num_leaves} leaves",
            lambda tree=tree, generator=generator: naive_tree_batch(tree, generator),
            {"tokens": lambda keys, batch, sampler=sampler: sampler.sample(keys, 1, batch).tokens},
        )
    return missed


def main() -> int:
    """Print all comparisons; the exit status says whether a goal was missed by more than the machine's noise."""
    torch.set_num_threads(1)
    print(machine())
    return int(any([hierarchy(), trees()]))


if __name__ == "__main__":
    sys.exit(main())
