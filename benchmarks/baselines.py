"""What guesses made without any upload score: the floors beside which recovered images can be read.

    python benchmarks/baselines.py --target representation
    python benchmarks/baselines.py DATA/tiny-imagenet-200/val/images --train DATA/tiny-imagenet-200/train
    python benchmarks/baselines.py DATA/cifar10-jpeg/test --train DATA/cifar10-jpeg/train

With ``--target``, a kind of upload of the embedded data set: a federation is trained, one attack is made, and every guess is
shown by every measure at the attack's very targets, from its record; with the attack's own row, that on permuted uploads,
and, for attacks that decode, what the decoder itself reaches on representations of strangers, whom it has never seen.

With a folder, for each guess the mean and standard deviation over its images of PSNR in dB on [0, 1], and the mean squared
error on 0..255. Mean colour and mean image are those of the training images; a random other image is drawn among the tested.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from calibration.rates import table
from PIL import Image

import fedpriv
from fedpriv.attacks.inversion.decoder import DecoderInversion, Pairs, divided, train_decoder
from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.metrics import psnr_of_mse, squared_errors
from fedpriv.eval.records import LABELS, ReconstructionRecord
from fedpriv.eval.score import BEYOND
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource, prepare

ATTACKS: Mapping[str, tuple[str, int]] = {
    "representation": ("decoder", 400),
    "prototype": ("decoder", 400),
    "entangled": ("unmix", 20),
}
"""Attack on each kind of upload, and its budget; guesses do not depend on it."""

AUXILIARY = 200
"""On whom a decoder is tried, for each client."""


def at_targets(record: ReconstructionRecord) -> list[dict[str, str]]:
    """Return a row for every guess, the control and the attack: each measure, at the same targets."""
    psnr = {name: np.asarray(one.psnr_db.per_target) for name, one in record.floors.items()}
    best = max(psnr, key=lambda name: float(psnr[name].mean()))
    metrics = record.metrics
    psnr["attack"] = np.asarray(metrics.psnr_db.per_target)
    told = metrics.identification_top1
    identified = dict(told.guesses) | {"attack": told.mean}

    def cell(value: float | None, unit: str) -> str:
        return "" if value is None else f"{value:.1f}" if unit == "dB" else f"{100 * value:.1f}"

    return [
        {
            "guess": LABELS.get(name, name) + (" (the floor)" if name == best else ""),
            "PSNR (dB)": cell(float(psnr[name].mean()) if name in psnr else None, "dB"),
            "3 dB beyond the floor (%)": cell(
                float((psnr[name] - psnr[best] >= BEYOND).mean()) if name in psnr else None, "%"
            ),
            "identified (%)": cell(identified.get(name), "%"),
        }
        for name in dict.fromkeys((*record.floors, "attack"))
    ]


def of_auxiliary(path: Path, kind: str, seed: int) -> str:
    """Return what the decoder of a run reaches on strangers' images, whose representations it never saw."""
    run = RunDirectory.open(path)
    federation = prepare(run.config, torch.device("cpu"))
    card = ThreatModel(attacker_data="same_domain")
    evidence = build_case(RunSource(run, federation, kind), card, n_targets=48, seed=seed)
    beside = RunSource(run, federation, kind).truths(evidence.targets, seed=seed)
    knowledge, attack = evidence.knowledge, DecoderInversion()
    clients = sorted(knowledge.extractors)
    assert knowledge.public_images is not None
    extractors = [knowledge.extractors[client] for client in clients]
    with torch.no_grad():
        known = Pairs([extractor(knowledge.public_images) for extractor in extractors], knowledge.public_images)
    inside, outside = divided(known, seed)
    decoder = train_decoder(inside, outside, attack.iterations, attack.width, seed)
    reached, mean_image = [], []
    pools = {target.client: truth.pool for target, truth in zip(evidence.targets, beside, strict=True)}
    for client, pool in pools.items():
        images = pool.guesses[
            torch.randperm(len(pool.guesses), generator=torch.Generator().manual_seed(seed))[:AUXILIARY]
        ]
        place = clients.index(client)
        with torch.no_grad():
            decoded = decoder(extractors[place](images), place)
        reached.append(float(psnr_of_mse((decoded - images).square().flatten(1).mean(1)).mean()))
        mean_image.append(float(psnr_of_mse(squared_errors(inside.images.mean(0, keepdim=True), images)[0]).mean()))
    return (
        f"The decoder, trained on {len(inside.images)} images of the attacker's own, reaches {np.mean(reached):.1f} dB on "
        f"{AUXILIARY} strangers' representations through each of {len(reached)} extractors ({min(reached):.1f} to "
        f"{max(reached):.1f} dB by client); the mean of its own images {np.mean(mean_image):.1f} dB on the same strangers."
    )


def of_uploads(target: str, seed: int) -> None:
    """Train, attack and print what guesses reach by every measure."""
    name, iterations = ATTACKS[target]
    with tempfile.TemporaryDirectory() as folder:
        found = fedpriv.attack(
            target=target, attacks=[name], seed=seed, iterations=iterations, out=Path(folder) / "attack", device="cpu"
        )
        record = found.records[name]
        assert found.run is not None
        made = f"{record.dataset}, {record.method}, seed {seed}"
        print(f"{record.n_targets} {target} targets of {record.n_clients} clients, {made}:\n")
        print(table(at_targets(record)))
        if target in ("representation", "prototype"):
            print(of_auxiliary(found.run.path, target, seed))


def images_below(folder: Path, at_most: int | None) -> np.ndarray:
    """Return the images below a folder ``(n, h, w, 3)`` uint8; of too many every k-th in order of path."""
    files = sorted(file for pattern in ("*.JPEG", "*.jpg", "*.png") for file in folder.rglob(pattern))
    step = 1 if at_most is None else max(1, -(-len(files) // at_most))
    return np.stack([np.array(Image.open(file).convert("RGB")) for file in files[::step]])


def guesses(truth: np.ndarray, train: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of a guess, and the squared error of each image on [0, 1]."""
    rng = np.random.default_rng(seed)
    scale = np.float32(255)
    mean_image = train.mean(axis=0, dtype=np.float64) / 255
    flat = {"mean colour": mean_image.mean(axis=(0, 1)), "mean image": mean_image, "mid-grey": np.float64(0.5)}
    shift = rng.integers(1, len(truth), size=len(truth))
    others = (np.arange(len(truth)) + shift) % len(truth)
    for name, guess in flat.items():
        yield name, np.array([np.square(one / scale - guess).mean() for one in truth])
    yield (
        "random other image",
        np.array([np.square((one / scale) - (truth[k] / scale)).mean() for one, k in zip(truth, others, strict=True)]),
    )
    yield "uniform noise", np.array([np.square(one / scale - rng.random(one.shape)).mean() for one in truth])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="images to guess at")
    parser.add_argument("--train", type=Path, help="images that mean colour and mean image are of")
    parser.add_argument("--train-at-most", type=int, default=20000)
    parser.add_argument("--target", choices=tuple(ATTACKS), help="kind of upload of the embedded data set")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.target is not None:
        of_uploads(options.target, options.seed)
        return
    if options.folder is None or options.train is None:
        parser.error("pass --target, or a folder and --train")
    truth, train = images_below(options.folder, None), images_below(options.train, options.train_at_most)
    print(f"{len(truth)} images {truth.shape[1]} x {truth.shape[2]}; means of {len(train)} training images")
    print("guess                 PSNR (dB)     sd   MSE (0..255)")
    for name, error in guesses(truth, train, options.seed):
        psnr = -10 * np.log10(np.maximum(error, 1e-10))
        print(f"{name:20s} {psnr.mean():10.2f} {psnr.std(ddof=1):6.2f} {255**2 * error.mean():14.0f}")


if __name__ == "__main__":
    main()
