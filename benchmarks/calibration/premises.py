"""How often the check of the premise flags what clients do that attacks do not assume, and what they do assume.

    python benchmarks/calibration/premises.py --cases 40 --seed 0

A case is a page of five clients on embedded images of clothes: a network (three small ones in turn), a number of images, a
learning rate and a kind of upload of its own. No attack is run.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from rates import parser, table
from torch import Tensor, nn
from torch.nn import functional

import fedpriv
from fedpriv.pipeline.premise import premise_of
from fedpriv.sources.door import read_uploads
from fedpriv.util.seeds import generator

CLIENTS: Final = 5
NOISE: Final = "noise:scale=0.1,unit=absolute"  # of a told defense
Draw = torch.Generator


@dataclass(frozen=True)
class Client:
    """What clients do, and what is said of it."""

    optimiser: str = "sgd"
    decay: float = 0.0
    dropout: float = 0.0
    normalised: bool = False  # in the loader
    old: bool = False  # what is handed in is of the round before
    smoothing: float = 0.0  # of labels, and said
    defended: bool = False  # by noise, and said
    kinds: tuple[str, ...] = ("one step", "gradient", "prototype")


WRONG: Final = {
    "Adam": Client(optimiser="adam", kinds=("one step",)),
    "weight decay 0.05": Client(decay=0.05, kinds=("one step",)),
    "normalisation in the loader": Client(normalised=True),
    "dropout 0.3": Client(dropout=0.3, kinds=("one step", "gradient")),
    "weights one round old": Client(old=True),
}
RIGHT: Final = {
    "plain SGD": Client(),
    "label smoothing 0.1, told": Client(smoothing=0.1, kinds=("one step", "gradient")),
    "noise, told": Client(defended=True),
}


def network(number: int, dropout: float, draw: Draw) -> nn.Sequential:
    """Return one of three networks of 28 x 28 images; its last layer is the head."""
    torch.manual_seed(int(torch.randint(1 << 30, (1,), generator=draw)))
    drop = nn.Dropout(dropout)
    if number % 3 == 0:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), drop, nn.Linear(32, 10))
    layer = [nn.Sigmoid(), nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU())][number % 3 - 1]
    return nn.Sequential(nn.Conv2d(1, 8, 5, stride=3), layer, nn.Flatten(), drop, nn.Linear(512, 10))


def trained(model: nn.Module, batches: list[tuple[Tensor, Tensor]], client: Client, rate: float) -> nn.Module:
    """Return a copy of a model after one step on each batch, as the client does it."""
    made, kind = copy.deepcopy(model).train(), {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[client.optimiser]
    optimiser = kind(made.parameters(), lr=rate if client.optimiser == "sgd" else rate / 10, weight_decay=client.decay)
    for images, labels in batches:
        optimiser.zero_grad()
        loss_of(made, images, labels, client).backward()
        optimiser.step()
    return made


def loss_of(model: nn.Module, images: Tensor, labels: Tensor, client: Client) -> Tensor:
    """Return the client's loss of one batch."""
    shown = (images - 0.2860) / 0.3530 if client.normalised else images
    return functional.cross_entropy(model(shown), labels, label_smoothing=client.smoothing)


def status_of(client: Client, number: int, seed: int, steps: int) -> str:
    """Return the status of the premise of one case; of several steps, half of the cases hand images in in another order."""
    draw = generator(seed, "premise", number)
    data = fedpriv.load("fashion", per_class=40)
    model = network(number, client.dropout, draw)
    size, rate = (int(torch.randint(4, 17, (1,), generator=draw)), [0.01, 0.03, 0.1][number // 3 % 3])
    kind = client.kinds[number % len(client.kinds)] if steps == 1 else "steps"
    order = torch.randperm(len(data), generator=draw)
    parts = [(data.images[part], data.labels[part]) for part in order.split(size * steps)][: CLIENTS + 1]
    now = trained(model, [parts.pop()] * 5, Client(), 0.1)  # after the round before
    start, handed = now, model if client.old else now
    uploads: list[Any] = []
    for images, labels in parts:
        if kind == "prototype":
            rows = copy.deepcopy(start[:-1]).eval()((images - 0.2860) / 0.3530 if client.normalised else images)
            present, counts = labels.unique(return_counts=True)
            means = torch.stack([rows[labels == one].mean(0) for one in present]).detach()
            uploads.append(fedpriv.Prototypes(noisy(means, client, draw), present, counts))
        elif kind == "gradient":
            loss = loss_of(start.train(), images, labels, client)
            values = torch.autograd.grad(loss, list(start.parameters()))
            uploads.append(fedpriv.Gradient([noisy(value, client, draw) for value in values]))
        else:
            mixed = (
                torch.randperm(len(labels), generator=draw) if number % 2 and steps > 1 else torch.arange(len(labels))
            )
            batches = [(images[part], labels[part]) for part in mixed.split(size)]
            after = trained(start, batches, client, rate).state_dict()
            sent = {name: noisy(value, client, draw) for name, value in after.items()}
            uploads.append(fedpriv.Update(handed.state_dict(), sent))
    settings: dict[str, Any] = {"defense": NOISE} if client.defended else {}
    if kind != "prototype":
        facts = fedpriv.BatchFacts(size, rate, steps)
        settings |= {"model": handed, "batch": replace(facts, label_smoothing=client.smoothing)}
    images, labels = [own for own, _ in parts], [known for _, known in parts]
    extractor, target = (handed[:-1], "prototype") if kind == "prototype" else (None, "model")
    auxiliary = torch.rand(20, 1, 28, 28, generator=draw)
    return premise_of(read_uploads(uploads, target, images, labels, extractor, auxiliary, settings)).status


def noisy(values: Tensor, client: Client, draw: Draw) -> Tensor:
    """Return what the client sends in place of a tensor."""
    return values.detach() + 0.1 * client.defended * torch.randn(values.shape, generator=draw)


def main() -> None:
    """Print the table."""
    chosen, shown = parser(__doc__, cases=40, seed=0).parse_args(), []
    for steps, what in ((1, ""), (5, ", five steps")):
        for clients, wanted in ((WRONG, "flagged"), (RIGHT, "not flagged")):
            for name, client in clients.items():
                found = Counter(status_of(client, number, chosen.seed, steps) for number in range(chosen.cases))
                figures = {"flagged": found["differs"], "not flagged": found["agrees"] + found["defense"]}
                row = (
                    {"clients": name + what, "should be": wanted} | figures | {"not checkable": found["not checkable"]}
                )
                shown.append(row)
    print(table(shown), end="")


if __name__ == "__main__":
    main()
