"""Our default attacks beside public implementations: same images, weights, uploads and budget, with paired intervals.

OMP_NUM_THREADS=1 PYTHONPATH=DIR/breaching python benchmarks/arena.py --data DIR/cifar10-jpeg/test --seed 7 --out ARENA

Images are drawn by the seed. Every contestant gets the same number of gradient evaluations a target, all rows and restarts
together; ours then attacks once more with as many as fit into the CPU seconds that the quickest peer took. One line of JSON
a case goes to ``ARENA/cases.jsonl``, and a second start goes on with those that are missing. ``--targets`` and ``--share``
make it smaller.
"""

from __future__ import annotations

import argparse
import json
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arena_sides import OURS, PEERS, Contestant, Found, Task
from arena_table import table
from one_step import problem_of
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit

OUR, EQUAL_SECONDS = "fedpriv", "fedpriv, equal seconds"
"""Names of our sides: at equal evaluations, and at the CPU seconds of the quickest peer."""

IMAGES, BLOCK, PUBLIC = 36, 4, 1000
"""Images in each row at least; targets that are attacked together; images that an attacker with a decoder may have."""


@dataclass(frozen=True)
class ArenaRow:
    """A row of the arena.

    Attributes:
        name: unique.
        attack: ours, by name.
        net: whose weights are untrained.
        batch: images of a target.
        evaluations: a target.
    """

    name: str
    attack: str
    net: str
    batch: int
    evaluations: int


ROWS = (
    ArenaRow("one image, cnn4", "inverting-gradients", "cnn4", 1, 400),
    ArenaRow("one image, cnn4, four times the budget", "inverting-gradients", "cnn4", 1, 1600),
    ArenaRow("batches of 4, cnn4", "inverting-gradients", "cnn4", 4, 400),
    ArenaRow("batches of 8, cnn4", "inverting-gradients", "cnn4", 8, 400),
    ArenaRow("batches of 16, cnn4", "inverting-gradients", "cnn4", 16, 400),
    ArenaRow("batches of 64, cnn4", "inverting-gradients", "cnn4", 64, 400),
    ArenaRow("one image, sigmoid LeNet", "inverting-gradients", "lenet-sigmoid", 1, 400),
    ArenaRow("batches of 4, sigmoid LeNet", "inverting-gradients", "lenet-sigmoid", 4, 400),
    ArenaRow("batches of 4, ResNet with batch norm", "inverting-gradients", "resnet4", 4, 400),
    ArenaRow("DLG, one image, sigmoid LeNet", "dlg", "lenet-sigmoid", 1, 1200),
    ArenaRow("DLG, batches of 4, sigmoid LeNet", "dlg", "lenet-sigmoid", 4, 1200),
    ArenaRow("representations, deep image prior", "dip", "cnn4", 1, 400),
    ArenaRow("representations, pixels", "pixels", "cnn4", 1, 400),
    ArenaRow("representations, decoder", "decoder", "cnn4", 1, 400),
)


@dataclass(frozen=True)
class Drawn:
    """Images ``(n, c, h, w)`` in [0, 1], labels ``(n,)``, names, and how many classes there are."""

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]
    n_classes: int


class Pool:
    """Where images are drawn from: a folder with one folder of files a class, or Fashion-MNIST, grey in three channels."""

    def __init__(self, folder: Path, dataset: str, seed: int) -> None:
        self._seed = seed
        if dataset == "folder":
            classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
            self._files = [
                (file, label)
                for label, own in enumerate(classes)
                for file in sorted(own.rglob("*"))
                if file.suffix.lower() in (".jpg", ".jpeg", ".png")
            ]
            self.n_classes, self._samples = len(classes), None
        else:
            made = load_dataset(dataset, SourceOptions(folder))
            self.n_classes, self._samples = made.n_classes, made.samples
            self._files = [(Path(str(number)), int(label)) for number, label in enumerate(made.samples.labels)]

    def draw(self, count: int, word: str) -> Drawn:
        """Return images drawn by the seed and a word."""
        picked = random.Random(f"{self._seed} {word}").sample(range(len(self._files)), count)
        labels = torch.tensor([self._files[number][1] for number in picked])
        names = tuple("/".join(self._files[number][0].parts[-3:]) for number in picked)
        if self._samples is not None:
            images = as_unit(self._samples.images[picked]).repeat(1, 3 // self._samples.images.shape[1], 1, 1)
            return Drawn(images, labels, names, self.n_classes)  # in colour: a peer takes nothing else
        opened = [np.asarray(Image.open(self._files[number][0]).convert("RGB")) for number in picked]
        return Drawn(
            torch.stack([torch.from_numpy(one.copy()).permute(2, 0, 1) for one in opened]).float() / 255,
            labels,
            names,
            self.n_classes,
        )


@dataclass(frozen=True)
class Arena:
    """What is asked for, and where results go.

    Attributes:
        pool: of images.
        name: of the images, in the records.
        seed: of images, weights and starts.
        share: of each row's evaluations.
        targets: of each row; None for as many as :data:`IMAGES` makes.
        peers: by name; nothing for all.
        results: file of lines.
    """

    pool: Pool
    name: str
    seed: int
    share: float
    targets: int | None
    peers: tuple[str, ...]
    results: Path

    def done(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the cases that are there, by what tells them apart."""
        lines = self.results.read_text(encoding="utf-8").splitlines() if self.results.is_file() else []
        return {self.key(case): case for case in map(json.loads, lines)}

    @staticmethod
    def key(case: dict[str, Any]) -> tuple[Any, ...]:
        """Return what tells a case from others."""
        return tuple(case[name] for name in ("images", "seed", "share", "row", "block", "side"))

    def blocks(self, row: ArenaRow) -> Iterator[tuple[int, Task, tuple[str, ...]]]:
        """Yield a row's blocks of targets: number, what contestants are given, names of images."""
        targets = self.targets or -(-IMAGES // row.batch)
        drawn = self.pool.draw(targets * row.batch, row.name)
        public = torch.empty(0)
        if row.attack == "decoder":
            public = self.pool.draw(PUBLIC + targets, row.name + " public").images[targets:]
        classes = max(100, drawn.n_classes) if row.net == "lenet-sigmoid" else drawn.n_classes
        for block, first in enumerate(range(0, targets, BLOCK)):
            own = slice(first * row.batch, min(targets, first + BLOCK) * row.batch)
            part = drawn.images[own], drawn.labels[own]
            problem = problem_of(row.net, *part, classes, self.seed, batch_size=row.batch, steps=1)
            yield block, Task(problem, public, self.seed), drawn.names[own]

    def run(self, row: ArenaRow) -> None:
        """Let all contestants of a row attack what they have not attacked yet."""
        evaluations, known = max(20, round(self.share * row.evaluations)), self.done()
        for block, task, names in self.blocks(row):
            cases: dict[str, dict[str, Any]] = {}
            about = {"images": self.name, "seed": self.seed, "share": self.share, "row": row.name, "block": block}

            def case(
                side: str,
                contestant: Contestant,
                most: int,
                about: dict[str, Any] = about,
                task: Task = task,
                names: tuple[str, ...] = names,
                cases: dict[str, dict[str, Any]] = cases,
            ) -> None:
                made = about | {"side": side}
                if self.key(made) in known:
                    cases[side] = known[self.key(made)]
                    return
                found = contestant(task, most)
                cases[side] = made | {"allowed": most} | _told(found, task) | {"files": names}
                with self.results.open("a", encoding="utf-8") as file:
                    print(json.dumps(cases[side]), file=file)

            case(OUR, OURS[row.attack], evaluations)
            for side, contestant in PEERS[row.attack].items():
                if not self.peers or side in self.peers:
                    case(side, contestant, evaluations)
            quickest = min(one["seconds"] for side, one in cases.items() if side != OUR)
            fitting = int(evaluations * quickest / cases[OUR]["seconds"])
            case(EQUAL_SECONDS, OURS[row.attack], max(20, fitting))


def _told(found: Found, task: Task) -> dict[str, Any]:
    """Return what is told of a case: of each target the mean PSNR of its images, each with the guess assigned to it."""
    count = len(task.problem.images) // len(found.images)
    scores = []
    for guesses, truth in zip(found.images, task.problem.images.split(count), strict=True):
        errors = (guesses.detach().clamp(0, 1).unsqueeze(1) - truth.unsqueeze(0)).square().flatten(2).mean(2)
        rows, columns = linear_sum_assignment(errors.numpy())
        scores.append(round(float(-10 * errors[rows, columns].clamp_min(1e-10).log10().mean()), 3))
    return {"psnr": scores, "evaluations": found.evaluations, "seconds": round(found.seconds, 2)}


def main() -> None:
    """Let them attack, and print who wins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, one folder a class")
    parser.add_argument("--dataset", default="folder", choices=("folder", "fashion-mnist"))
    parser.add_argument("--seed", type=int, required=True, help="draws the images, weights and starts")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--rows", nargs="*", default=[row.name for row in ROWS], help="some of the rows")
    parser.add_argument("--targets", type=int, default=None, help=f"of each row; without it {IMAGES} images")
    parser.add_argument("--share", type=float, default=1.0, help="of each row's evaluations")
    parser.add_argument("--peers", nargs="*", default=[], help="some of the peers, by name")
    parser.add_argument("--name", default=None, help="of the images; else that of the folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    pool = Pool(options.data, options.dataset, options.seed)
    name = options.name or options.data.name
    results, peers = options.out / "cases.jsonl", tuple(options.peers)
    arena = Arena(pool, name, options.seed, options.share, options.targets, peers, results)
    for row in ROWS:
        if row.name in options.rows:
            arena.run(row)
            print(table([case for case in arena.done().values() if case["row"] == row.name], OUR, EQUAL_SECONDS))
    print(table(list(arena.done().values()), OUR, EQUAL_SECONDS))


if __name__ == "__main__":
    main()
