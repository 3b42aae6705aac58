"""Members from class means of more and more images of CIFAR-10: the curve, its table with paired intervals, its picture.

OMP_NUM_THREADS=1 python benchmarks/members_of_means.py --data DIR/cifar10-jpeg --draw 110 --out CURVE [--picture FILE.png]

A mean of n images is of the first n that the draw puts in order for its class: along the curve nothing changes but n. A line
of JSON a case goes to ``CURVE/members.jsonl``; a second start goes on with those that are missing, another draw adds means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar import Clock, load, psnr, trained_cnn
from learned_prior import World
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.cluster import KMeans
from torch import Tensor

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.learned import LearnedInversion
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.trained import Trained
from fedpriv.models.split import SplitModel
from fedpriv.scoring.definitions import assign, squared_errors
from fedpriv.scoring.intervals import clustered
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.payloads import Prototypes

Case = dict[str, Any]
Values = np.ndarray[Any, np.dtype[np.float64]]

MEAN, AUXILIARY, CENTRES = "class mean image", "images of the class", "cluster centres of the class"
TRUE, ABOUT = "true mean image", "cluster centres about the true mean"
GUESSES = (MEAN, AUXILIARY, CENTRES)
"""Guesses that need no upload: one image for all members, or as many images as there are members."""

BEYOND = (TRUE, ABOUT)
"""Images that nobody has who holds the upload alone: members told beyond these are told one by one, not by their mean."""

ATTACKS: dict[str, Callable[[int], Attack]] = {
    "learned": lambda count: LearnedInversion(most=count),
    "decoder": lambda count: DecoderInversion(),
}
"""Attacks of a mean of so many images, by name."""

DRAWS = 20
"""Sets of auxiliary images over which their score is averaged."""

PAIRS: dict[str, tuple[str, Sequence[str]]] = {
    "`learned` beyond the best guess": ("learned", GUESSES),
    "beyond the true mean image": ("learned", (TRUE,)),
    "beyond cluster centres about the true mean": ("learned", (ABOUT,)),
    "`decoder` beyond the best guess": ("decoder", GUESSES),
}
"""Differences that are told: an attack, and what it stands beside, of which the strongest counts."""

WHOLE = 99.0
"""PSNR in dB from which an image is the image itself: the true mean of one."""

COLOURS = {
    "learned": "#0b6e4f",
    "decoder": "#2f6fde",
    MEAN: "#6a7482",
    AUXILIARY: "#c3a13b",
    CENTRES: "#b4532a",
    TRUE: "#1d232b",
}
APART = ("#0b6e4f", "#1d232b", "#b4532a", "#2f6fde")
"""Colours of the scores, and of the differences."""


@dataclass(frozen=True)
class Means:
    """Class means of n images each, and what their attacker holds.

    Attributes:
        world: images of the client and of the attacker.
        count: n.
        members: places of the client's images, n of each mean.
        labels: of the means.
        seen: the one upload that holds all of them.
        known: to the attacker; the same object for all n, so that what is trained on it is trained once.
    """

    world: World
    count: int
    members: tuple[Tensor, ...]
    labels: Tensor
    seen: tuple[Observation, ...]
    known: Knowledge

    @classmethod
    def drawn(cls, world: World, model: SplitModel, known: Knowledge, count: int, number: int, draw: int) -> Means:
        """Draw as many means as asked for, one class after the other."""
        members = []
        for place in range(number):
            own = (world.labels == place % 10).nonzero().flatten()
            order = torch.randperm(len(own), generator=generator(draw, "members of a mean", place))
            members.append(own[order[:count]])
        labels = torch.tensor([place % 10 for place in range(number)])
        vectors = torch.stack([model.represent(world.images[own]).mean(0) for own in members])
        upload = Prototypes(vectors, labels, torch.full((number,), count))
        return cls(world, count, tuple(members), labels, (Observation(0, 0, (upload,), ()),), known)

    def attacked(self, name: str, place: int, draw: int, trained: Trained) -> tuple[list[float], float]:
        """Return the PSNR of each member of a mean, and the CPU seconds that the attack took."""
        target = list_targets(self.seen, "prototype")[place]
        clock = Clock()
        found = ATTACKS[name](self.count)(self.seen, self.known, (target,), seed=draw, trained=trained)
        return nearest(found.images[0].detach(), self.world.images[self.members[place]]), clock.seconds()

    def guessed(self, place: int, draw: int) -> dict[str, list[float]]:
        """Return the PSNR of each member of a mean with what is guessed, and with what nobody has."""
        truth, label = self.world.images[self.members[place]], self.labels[place]
        own, count = self.world.own[self.world.own_labels == label], self.count
        picks = [
            torch.randperm(len(own), generator=generator(draw, "strangers", place, again))[:count]
            for again in range(DRAWS)
        ]
        fitted = KMeans(count, n_init=10, random_state=derive_seed(draw, "centres", place) % 2**32)
        centres = torch.from_numpy(fitted.fit(own.flatten(1).numpy()).cluster_centers_).float().view(-1, *own.shape[1:])
        mean = truth.mean(0, keepdim=True)
        strange = torch.tensor([nearest(own[pick], truth) for pick in picks]).mean(0)
        return {
            MEAN: nearest(own.mean(0, keepdim=True), truth),
            AUXILIARY: strange.tolist(),
            CENTRES: nearest(centres, truth),
            TRUE: nearest(mean, truth),
            ABOUT: nearest((centres - centres.mean(0) + mean).clamp(0, 1), truth),
        }


def nearest(guesses: Tensor, members: Tensor) -> list[float]:
    """Return the PSNR of each member ``(m, c, h, w)`` with the guess assigned to it."""
    return psnr(guesses[assign(squared_errors(guesses, members))], members).tolist()


def measure(means: Means, draw: int, trained: Trained, results: Path) -> None:
    """Write down what is not in the records yet of means of one n."""
    there = {(one["draw"], one["count"], one["mean"], one["side"]) for one in read(results)}

    def told(place: int, side: str, scores: Sequence[float], seconds: float | None) -> None:
        made: Case = {"draw": draw, "count": means.count, "mean": place, "side": side}
        made |= {"psnr": [round(score, 3) for score in scores], "members": means.members[place].tolist()}
        with results.open("a", encoding="utf-8") as file:
            print(json.dumps(made if seconds is None else made | {"seconds": round(seconds, 2)}), file=file)

    for place in range(len(means.members)):
        missing = {side for side in (*GUESSES, *BEYOND, *ATTACKS) if (draw, means.count, place, side) not in there}
        if missing - set(ATTACKS):
            for side, scores in means.guessed(place, draw).items():
                if side in missing:
                    told(place, side, scores, None)
        for side in ATTACKS:
            if side in missing:
                told(place, side, *means.attacked(side, place, draw, trained))


def read(results: Path) -> list[Case]:
    """Return the cases that are there."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    return [json.loads(line) for line in lines]


def by_count(cases: Sequence[Case]) -> dict[int, dict[str, Values]]:
    """Return of each n and side the scores of means, in one order for all sides: the mean PSNR over a mean's members."""
    found: dict[int, dict[str, Values]] = {}
    for count in sorted({one["count"] for one in cases}):
        own = sorted((one for one in cases if one["count"] == count), key=lambda one: (one["draw"], one["mean"]))
        sides = {side: [one for one in own if one["side"] == side] for side in (*ATTACKS, *GUESSES, *BEYOND)}
        whole = set.intersection(*({(one["draw"], one["mean"]) for one in each} for each in sides.values()))
        if whole:
            found[count] = {
                side: np.array([np.mean(one["psnr"]) for one in each if (one["draw"], one["mean"]) in whole])
                for side, each in sides.items()
            }
    return found


def strongest(scores: Mapping[str, Values], sides: Sequence[str]) -> str:
    """Return the side with the highest mean, which favours what the attack stands beside."""
    return max(sides, key=lambda side: float(scores[side].mean()))


def within(values: Values) -> tuple[float, float, float]:
    """Return the mean with its 95 % t-interval over means."""
    limits = clustered(values, range(len(values))).interval()
    middle = float(values.mean())
    return (middle, *(limits or (middle, middle)))


def tables(cases: Sequence[Case]) -> str:
    """Return two tables as Markdown, a row for each n: scores, and paired differences, a target being one mean."""
    sides = (*ATTACKS, *GUESSES, *BEYOND)
    scores, apart = [_row(("n_c (means)", *sides), first=True)], [_row(("n_c (means)", *PAIRS), first=True)]
    for count, found in by_count(cases).items():
        number = f"{count} ({len(found[TRUE])})"
        means = ["the image" if count == 1 and s in BEYOND else f"{found[s].mean():.1f} dB" for s in sides]
        scores.append(_row((number, *means)))
        apart.append(_row((number, *(_apart(found, pair) for pair in PAIRS.values()))))
    return "\n".join((*scores, "", *apart))


def _row(cells: Sequence[str], first: bool = False) -> str:
    line = "| " + " | ".join(cells) + " |"
    return line + "\n| " + " | ".join(["---:"] * len(cells)) + " |" if first else line


def _apart(found: Mapping[str, Values], pair: tuple[str, Sequence[str]]) -> str:
    side, others = pair
    other = strongest(found, others)
    if float(found[other].min()) >= WHOLE:
        return "–"
    middle, low, high = within(found[side] - found[other])
    return f"{middle:+.1f} [{low:+.1f}, {high:+.1f}] dB"


def seconds(cases: Sequence[Case]) -> str:
    """Return the CPU seconds of the attacks by n, their trainings with the first mean that they attack."""
    told = []
    for side in ATTACKS:
        for count in sorted({one["count"] for one in cases}):
            own = [one["seconds"] for one in cases if one["side"] == side and one["count"] == count]
            told.append(f"{side}, n_c {count}: {np.median(own):.1f} CPU s a mean (median)")
    return "\n".join(told)


def single_means(cases: Sequence[Case]) -> str:
    """Return the number of means of each n that ``learned`` is ahead in of their true mean image, and of those by 3 dB."""
    told = []
    for count, found in by_count(cases).items():
        apart = found["learned"] - found[TRUE]
        ahead, far = int((apart > 0).sum()), int((apart >= 3).sum())
        told.append(f"n_c {count}: {ahead} of {len(apart)} beyond the true mean image, {far} by 3 dB or more")
    return "\n".join(told)


def draw_curve(cases: Sequence[Case], path: Path) -> None:
    """Draw scores by n, and beside them the paired differences of ``learned``."""
    found = by_count(cases)
    figure = Figure(figsize=(9.5, 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for side, colour in COLOURS.items():
        counts = [count for count in found if count > 1 or side not in BEYOND]
        _band(left, counts, [within(found[count][side]) for count in counts], colour, side)
    left.set_ylabel("PSNR of a member, dB")
    for (name, (side, others)), colour in zip(PAIRS.items(), APART, strict=True):
        counts = [count for count in found if count > 1 or others == GUESSES]
        apart = [within(found[n][side] - found[n][strongest(found[n], others)]) for n in counts]
        _band(right, counts, apart, colour, f"{'' if name.startswith('`') else 'learned '}{name.replace('`', '')}")
    right.axhline(0, color="#6a7482", linewidth=0.8, zorder=0)
    right.set_ylabel("paired difference, dB")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(found), [str(count) for count in found])
        axes.minorticks_off()
        axes.set_xlabel("images that the mean is made of")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})


def _band(
    axes: Axes, counts: Sequence[int], told: Sequence[tuple[float, float, float]], colour: str, name: str
) -> None:
    middle, low, high = zip(*told, strict=True)
    axes.plot(counts, middle, "o-", color=colour, label=name, markersize=4, linewidth=1.5)
    axes.fill_between(counts, low, high, color=colour, alpha=0.13, linewidth=0)


def main() -> None:
    """Train, attack what is missing, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--draw", type=int, required=True, help="seed of members, starts and guesses")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12], help="images in a mean")
    parser.add_argument("--means", type=int, default=10, help="of each number of images, one class after the other")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--picture", type=Path, help="where the curve is drawn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    results: Path = options.out / "members.jsonl"
    world = World(*load(options.data / "train", 200), *load(options.data / "train", 100, skip=200))
    model = trained_cnn(world.images, world.labels, 10, 0)
    known, trained = world.knowledge(model), Trained()
    for count in options.counts:
        means = Means.drawn(world, model, known, count, options.means, options.draw)
        measure(means, options.draw, trained, results)
        print(tables(read(results)), flush=True)
    print(single_means(read(results)), seconds(read(results)), sep="\n")
    if options.picture:
        draw_curve(read(results), options.picture)


if __name__ == "__main__":
    main()
