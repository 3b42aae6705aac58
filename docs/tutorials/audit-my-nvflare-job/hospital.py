"""The model and the data of the job, as its owner wrote them; fedpriv is told where they are, in ``facts.toml``."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Images ``(n, 1, 8, 8)`` to logits ``(n, 10)``."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)  # here, as NVFlare makes the first model anew in the server's process
            self.hidden = nn.Linear(64, 96)
            self.head = nn.Linear(96, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        return self.head(torch.relu(self.hidden(images.flatten(1))))


BESIDE = Path(__file__).parent / "data"


def load_data(site: str, *, folder: str | Path = BESIDE) -> tuple[Tensor, Tensor]:
    """Return the images ``(n, 1, 8, 8)`` in [0, 1] and the classes ``(n,)`` that a site reads from its disk."""
    held = np.load(Path(folder) / f"{site}.npz")
    return torch.from_numpy(held["images"]), torch.from_numpy(held["labels"]).long()


def auxiliary() -> tuple[Tensor, Tensor]:
    """Return images that no site has, and their classes: baselines are made of them."""
    return load_data("auxiliary")
