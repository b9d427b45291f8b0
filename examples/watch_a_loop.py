"""Watch a small transformer learn to repeat what it has read, in a plain training loop.

The second half of every sequence repeats the first. To predict it a head must find the last place where the current
token stood: attention starts uniform, narrows when that is learned, and the table shows in which layer and when.
"""

import argparse

import torch
from torch import nn

import joma
from joma.probe.schedule import Logarithmic

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 16, 24, 64, 4, 2


class Decoder(nn.Module):
    """PyTorch's own layers with a causal mask."""

    def __init__(self) -> None:
        """Take the sizes above."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of the next tokens."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(x, mask=mask, is_causal=True))


def repeated(num_sequences: int) -> torch.Tensor:
    """Draw sequences whose second half is their first."""
    half = torch.randint(0, VOCABULARY, (num_sequences, LENGTH // 2))
    return half.repeat(1, 2)


def main() -> None:
    """Train, watched."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=1000)
    arguments.add_argument("--out", default=None, help="folder of the run; joma report makes a page of it")
    given = arguments.parse_args()

    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with joma.watch(model, out=given.out, schedule=Logarithmic(), measures="full") as watch:
        for step in range(given.steps + 1):
            tokens = repeated(64)
            logits = model(tokens[:, :-1])[:, LENGTH // 2 - 1 :]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, LENGTH // 2 :].flatten())
            loss.backward()
            optimizer.step()
            watch.step(step, loss=loss)
            optimizer.zero_grad()

        table = watch.frame()
        chosen = table[table["metric"].isin(["loss", "entropy_fraction", "stable_rank"])]
        print(chosen.pivot_table(index="step", columns=["metric", "layer"], values="value").round(2))
        print(watch.summary())


if __name__ == "__main__":
    main()
