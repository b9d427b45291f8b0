"""A GPT-NeoX that trains in a second, and a text for it."""

from joma.paper.neox import NeoxConfig


def write_text_folder(folder):
    """Write train, valid and test files with sentences that repeat with changing words."""
    folder.mkdir(parents=True)
    animals, verbs = ("cat", "dog", "bird", "fish", "horse"), ("sees", "eats", "likes", "finds")
    lines = [f"the {a} {v} the {b} and the {b} {v} it ." for a in animals for v in verbs for b in animals]
    for name, count in (("train", 20), ("valid", 10), ("test", 10)):
        (folder / f"{name}.txt").write_text("\n".join(lines * count))
    return folder


def tiny_neox(text, **changes):
    settings = {
        "texts": (str(text),), "vocabulary": 50, "width": 16, "depth": 2, "heads": 2, "window": 12, "batch": 4,
        "num_steps": 10, "every": 1, "lr": 1e-2, "warmup": 2,
    }  # fmt: skip
    return NeoxConfig(**{**settings, **changes})
