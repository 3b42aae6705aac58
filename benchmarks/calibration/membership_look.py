"""Is a client's look taken for membership? Clients with a brightness and contrast of their own, asked about fresh images.

Ten clients train a network each on a few classes of clothes and upload class means. Each client changes brightness and
contrast of all its images in its own way, mildly. Of every federation three pages are made:

- null: "members" are fresh images of the client that entered no upload, non-members its held-out images: nothing to find;
- others: the same with others' images as non-members, judged as if they were held-out images, which fedpriv does not do;
- members: the images that entered the upload, beside held-out images.

    OMP_NUM_THREADS=1 python benchmarks/calibration/membership_look.py --pages 40
"""

from __future__ import annotations

import torch
from rates import parser
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

import fedpriv
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.scoring.judgement import judge
from fedpriv.util.seeds import generator

CLIENTS, CLASSES, EACH, PUBLIC, EPOCHS = 10, 4, 8, 30, 30
"""Clients; classes of each; its images of a class in each of three parts; the attacker's of a class; passes of training."""

CONTRAST, BRIGHTNESS = 0.4, 0.2
"""Looks are drawn evenly: contrast within so much of 1, brightness within so much of 0."""


def looks(number: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw contrast and brightness ``(number, 1, 1, 1)``."""
    drawn = 2 * torch.rand(2, number, 1, 1, 1, generator=rng) - 1
    return 1 + CONTRAST * drawn[0], BRIGHTNESS * drawn[1]


def seen_as(images: Tensor, look: tuple[Tensor, Tensor]) -> Tensor:
    """Return images ``(n, 1, h, w)`` in [0, 1] under a look."""
    contrast, brightness = look
    return (contrast * (images - 0.5) + 0.5 + brightness).clamp(0, 1)


def trained(images: Tensor, labels: Tensor, rng: torch.Generator) -> nn.Module:
    """Return an extractor ``(n, 1, 14, 14)`` to ``(n, 32)`` that was trained with a head on one client's images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=rng)))
        extractor = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * 16, 32), nn.ReLU()),
        )
        head = nn.Linear(32, 10)
    optimiser = torch.optim.SGD([*extractor.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images), generator=rng).split(16):
            optimiser.zero_grad()
            cross_entropy(head(extractor(images[batch])), labels[batch]).backward()
            optimiser.step()
    return extractor.eval()


def page(seed: int) -> dict[str, tuple[float, float, bool]]:
    """Return of each page of a federation the AUC, that of the baseline, and whether a leak is claimed."""
    samples = load_dataset("fashion", SourceOptions()).samples
    rng = generator(seed, "looks of clients")
    images = avg_pool2d(samples.images.float() / 255, 2)
    pools = {c: (samples.labels == c).nonzero().flatten() for c in range(10)}
    pools = {c: list(own[torch.randperm(len(own), generator=rng)].split(EACH)) for c, own in pools.items()}
    parts: list[list[Tensor]] = [[], [], []]
    labels, uploads, networks = [], [], []
    order = torch.randperm(10, generator=rng)
    for client in range(CLIENTS):
        classes = order[(client * CLASSES + torch.arange(CLASSES)) % 10].sort().values  # every class at four clients
        drawn = [torch.cat([pools[c].pop(0) for c in classes.tolist()]) for _part in parts]
        look, own_labels = looks(1, rng), classes.repeat_interleave(EACH)
        own = [seen_as(images[index], look) for index in drawn]
        extractor = trained(own[0], own_labels, rng)
        with torch.no_grad():
            means = torch.stack([extractor(own[0][own_labels == c]).mean(0) for c in classes])
        for part, mine in zip(parts, own, strict=True):
            part.append(mine)
        uploads.append(fedpriv.Prototypes(means, classes, torch.full((CLASSES,), EACH)))
        labels.append(own_labels)
        networks.append(extractor)
    left = torch.cat([torch.cat(own) for own in pools.values()])
    left = left[torch.randperm(len(left), generator=rng)]
    outside, outside_labels = seen_as(images[left], looks(len(left), rng)), samples.labels[left]
    number = 10 * PUBLIC
    held_out = list(zip(parts[2], labels, strict=True))
    given = {
        **{"target": "prototype", "attacks": "membership", "extractor": networks, "labels": labels, "seed": seed},
        **{"public": outside[:number], "public_labels": outside_labels[:number]},
        **{"strangers": outside[number:], "stranger_labels": outside_labels[number:]},
    }
    asked = {
        "null": {"images": parts[1], "held_out": held_out},
        "others": {"images": parts[1]},
        "members": {"images": parts[0], "held_out": held_out},
    }
    found = {}
    for name, own in asked.items():
        result = fedpriv.attack_uploads(uploads, **given, **own)
        record = result.scores["membership"]
        assert "held_out" in own or not result.verdicts["membership"].claims
        claimed = judge(record.model_copy(update={"nonmembers": "held_out"})).claims
        found[name] = (record.auc.value, record.baseline.auc.value, bool(claimed))
    return found


def main() -> None:
    """Print the mean of each figure, and how many pages claim a leak."""
    number = parser(__doc__, pages=40).parse_args().pages
    pages = [page(seed) for seed in range(number)]
    for name in pages[0]:
        auc, baseline, claimed = (torch.tensor([one[name][place] for one in pages]).float() for place in range(3))
        told = f"AUC {auc.mean():.3f}, baseline {baseline.mean():.3f}"
        print(f"{name}: {told}, a leak claimed on {claimed.sum():.0f} of {number} pages", flush=True)


if __name__ == "__main__":
    main()
