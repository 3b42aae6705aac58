"""Class prototypes from FedRE's uploads over rounds: the posterior of ``unmix`` beside plainer ones and blind guesses.

    OMP_NUM_THREADS=1 python benchmarks/entangled_rounds.py --data DIR/tiny-imagenet-200 --out FOLDER --seeds 0 1

Each federation is trained once into FOLDER, and taken from there afterwards: six clients of three small architectures
(d = 256) on the first 20 classes of TinyImageNet, half of the images with strangers, Dirichlet 0.5 (9 to 18 classes a
client), batches of 10, one local epoch. A: 32 px, SGD 0.03, seen at rounds 10, 20, 30; B: 64 px, 20 rounds; C: little drift,
32 px, SGD 0.003, at rounds 15 and 30. Each cell: median relative error / share nearest to their own by distance / by
direction from the client's mean, in per cent, over all classes of all clients.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from plain_posterior import plain_posterior
from torch import Tensor

import fedpriv
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.read.target_features import rounds_of
from fedpriv.attacks.recover.unmixing import ClientUnmixed, UnmixedInversion, uploads_of
from fedpriv.attacks.recover.unmixing_once import PriorUnmixing, posterior_mean
from fedpriv.evidence.gather import Evidence, gather, truths
from fedpriv.evidence.guesses import with_guesses
from fedpriv.experiment.federation import prepare
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.scoring.vectors import identify_directions, identify_features
from fedpriv.wire.payloads import Entangled, get_payload

MODELS = "small-cnn,small-cnn-wide,small-cnn-deep"


@dataclass(frozen=True)
class Column:
    """A federation, seen after some rounds."""

    name: str
    rounds: tuple[int, ...]
    pixels: int
    lr: float


COLUMNS = (Column("A", (10, 20, 30), 32, 0.03), Column("B", (20,), 64, 0.03), Column("C", (15, 30), 32, 0.003))

Recover = Callable[[Evidence, Knowledge, int], ClientUnmixed]


def subset(data: Path, folder: Path, classes: int = 20) -> Path:
    """Make a folder of links to the first classes of TinyImageNet that are there."""
    root = folder / "tiny-imagenet-200"
    if (root / "wnids.txt").is_file():
        return root
    (root / "train").mkdir(parents=True, exist_ok=True)
    (root / "val").mkdir(exist_ok=True)
    here = [name for name in (data / "wnids.txt").read_text().split() if (data / "train" / name).is_dir()][:classes]
    links = [(root / "train" / name, data / "train" / name) for name in here]
    links += [(root / "words.txt", data / "words.txt"), (root / "val" / "images", data / "val" / "images")]
    for link, there in links:
        if not link.is_symlink():
            os.symlink(there.resolve(), link)
    lines = (data / "val" / "val_annotations.txt").read_text().splitlines(keepends=True)
    (root / "val" / "val_annotations.txt").write_text("".join(line for line in lines if line.split("\t")[1] in here))
    (root / "wnids.txt").write_text("\n".join(here) + "\n")
    return root


def federation(column: Column, seed: int, data: Path, folder: Path) -> RunDirectory:
    """Train a federation, or open the one that is there."""
    path = folder / f"{column.name.lower()}{seed}"
    if not path.is_dir():
        fedpriv.train(
            method="fedre",
            dataset="tiny-imagenet",
            data_dir=subset(data, folder),
            image_size=column.pixels,
            alpha=0.5,
            clients=6,
            models=MODELS,
            width=256,
            rounds=column.rounds[-1],
            lr=column.lr,
            capture="all",
            keep=column.rounds[:-1],
            seed=seed,
            out=path,
        )
    return RunDirectory.open(path)


def of_round(evidence: Evidence, client: int) -> tuple[Observation, Tensor, Tensor]:
    """Return a client's newest upload, the classes ``(m,)`` of all its rounds, and the weights ``(m,)`` it gives them."""
    newest = rounds_of(evidence.observations, client)[-1]
    classes = uploads_of(evidence.observations, client)[2]
    return newest, classes, get_payload(newest.upload, Entangled).label_encoding[classes]


def once(source: str) -> Recover:
    """Return ``unmix-prior``."""

    def recover(evidence: Evidence, knowledge: Knowledge, client: int) -> ClientUnmixed:
        newest, classes, weights = of_round(evidence, client)
        feature = get_payload(newest.upload, Entangled).feature
        target = next(t for t in evidence.targets if t.client == client)
        prior = PriorUnmixing(source="uploads" if source == "uploads" else "images").prior(
            evidence.observations, target, knowledge
        )
        return ClientUnmixed(posterior_mean(feature, weights, prior[classes].to(feature)), classes)

    return recover


def by(attack: UnmixedInversion) -> Recover:
    """Return a setting of ``unmix``."""
    return lambda evidence, knowledge, client: attack.unmixed(evidence.observations, client, knowledge)


def plain(scale: float | None) -> Recover:
    """Return the posterior that anybody would write first, its head's scale fixed or the likeliest."""
    return lambda evidence, knowledge, client: plain_posterior(evidence.observations, client, scale)


def last_uploads(evidence: Evidence, knowledge: Knowledge, client: int) -> ClientUnmixed:
    """Return the mean of the last three uploads for every class."""
    features, _, classes = uploads_of(evidence.observations, client)
    return ClientUnmixed(features[-3:].mean(0).expand(len(classes), -1), classes)


ROWS: dict[str, Recover] = {
    "unmix-prior, uploads": once("uploads"),
    "unmix, posterior, no prior": by(UnmixedInversion(prior="none", head=False)),
    "unmix, posterior, head": by(UnmixedInversion(prior="none")),
    "plain posterior, head, its scale by likelihood": plain(None),
    **{f"plain posterior, head, scale {scale:g}": plain(scale) for scale in (4.0, 16.0, 64.0)},
    "blind: mean of the last three uploads": last_uploads,
    "unmix-prior, own images": once("images"),
    "unmix, posterior, head and own images": by(UnmixedInversion()),
}


def cells(run: RunDirectory, rounds: int) -> dict[str, tuple[float, float, float, float, float]]:
    """Return by attack or guess: median error, two rates, median expected error (nan for none), CPU seconds a client."""
    prepared = prepare(run.config, torch.device("cpu"))
    card = KnowledgeCard(attacker_data="same_domain", rounds_seen=rounds)
    evidence = gather(run, prepared, "entangled", card, n_targets=10**9, seed=0, round_=rounds, unit="class")
    found = truths(run, prepared, "entangled", evidence.targets, seed=0, unit="class")
    true = torch.stack([one.feature for one in found if one.feature is not None])
    clients = [target.client for target in evidence.targets]
    guessed = with_guesses(found, evidence, "entangled", "class", device=torch.device("cpu"))
    made: dict[str, tuple[float, float, float, float, float]] = {}
    for name, recover in ROWS.items():
        began = time.process_time()
        parts = {client: recover(evidence, evidence.knowledge, client) for client in dict.fromkeys(clients)}
        seconds = (time.process_time() - began) / len(parts)
        rows = [(parts[t.client], parts[t.client].classes.tolist().index(t.label)) for t in evidence.targets]
        vectors = torch.stack([part.prototypes[row] for part, row in rows])
        ways = [None if part.directions is None else part.directions[row] for part, row in rows]
        led = torch.stack([way for way in ways if way is not None]) if None not in ways else None
        far = [float("nan") if part.distance is None else float(part.distance[row]) for part, row in rows]
        expected = 100 * (torch.tensor(far) / vectors.norm(dim=1)).median()
        made[name] = (*measured(vectors, true, clients, led), float(expected), seconds)
    for name in guessed[0].vectors:
        vectors = torch.stack([one.vectors[name] for one in guessed])
        made[f"blind: {name}"] = (*measured(vectors, true, clients, None), float("nan"), 0.0)
    return made


def measured(vectors: Tensor, true: Tensor, clients: list[int], ways: Tensor | None) -> tuple[float, float, float]:
    """Return the median relative error and both rates of identification, in per cent."""
    errors = (vectors - true).norm(dim=1) / true.norm(dim=1)
    hits, _ = identify_features(vectors, true, clients)
    straight = identify_directions(vectors if ways is None else ways, true, clients, centred=ways is not None)
    return 100 * float(errors.median()), 100 * sum(hits) / len(hits), 100 * sum(straight) / len(straight)


def main() -> None:
    """Train what is not there, and print a table for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder tiny-imagenet-200")
    parser.add_argument("--out", type=Path, required=True, help="folder of the federations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--columns", default="A,B,C")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        wanted = [column for column in COLUMNS if column.name in arguments.columns.split(",")]
        found = {}
        for column in wanted:
            run = federation(column, seed, arguments.data, arguments.out)
            found |= {f"{column.name} {rounds}": cells(run, rounds) for rounds in column.rounds}
        print(f"| seed {seed} | " + " | ".join(found) + " | CPU s a client |")
        print("| --- | " + "--- | " * len(found) + "---: |")
        for name in next(iter(found.values())):
            row = [column[name] for column in found.values()]
            shown = [f"{e:.1f} / {near:.0f} / {straight:.0f}" for e, near, straight, *_ in row]
            print(f"| {name} | " + " | ".join(shown) + f" | {max(one[-1] for one in row):.2f} |", flush=True)
            if row[0][3] == row[0][3]:
                expected = " | ".join(f"{one[3]:.1f}" for one in row)
                print(f"| (error that it expects) | {expected} | |", flush=True)


if __name__ == "__main__":
    main()
