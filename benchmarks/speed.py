"""CPU seconds of fedpriv's work, in turns with another checkout of it or with a peer.

    python benchmarks/speed.py                                   # every case, beside ordinary code where there is some
    python benchmarks/speed.py dip rounds --base CHECKOUT        # beside another commit: git worktree add CHECKOUT COMMIT
    PYTHONPATH=breaching python benchmarks/speed.py dlg inverting-gradients --peer
    python benchmarks/speed.py rounds --peer --htfllib HtFLlib
    python benchmarks/speed.py "client steps"                    # FedRE beside itself without entanglement: its table 9

Each side is a process of its own with one thread; they take turns (a b a b), after one turn each that is not measured, and
a ratio is of a pair of turns. The clock is that of the process, start-up left out. Prints least, median and largest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS, SIDE, ENDLESS = 10, 32, 1000

CASES: dict[str, dict[str, Any]] = {
    **{
        f"rounds {method}": {"work": "rounds", "method": method, "per_class": 400}
        # 3,000 images are trained on in a round
        for method in ("local", "lg-fedavg", "fedproto", "fedgh", "fedre", "fedmrl", "fedkd")
    },
    **{
        f"client steps fedre beside {other}": {"work": "clients", "method": "fedre", "beside": other, "per_class": 200}
        for other in ("fedallrep", "local")
    },
    **{
        f"{attack} {net}, {targets} target{'s' * (targets > 1)}": {
            **{"work": "gradients", "attack": attack, "net": net, "targets": targets, "steps": steps, "size": size}
        }
        for attack, net, targets, steps, size in (
            ("inverting-gradients", "lenet-sigmoid", 1, 40, 1),
            ("inverting-gradients", "lenet-sigmoid", 8, 40, 1),
            ("inverting-gradients", "cnn4", 1, 40, 1),
            ("inverting-gradients", "cnn4", 8, 20, 1),
            ("inverting-gradients", "cnn4", 2, 20, 8),
            ("dlg", "lenet-sigmoid", 1, 4, 1),
            ("dlg", "lenet-sigmoid", 8, 4, 1),
        )
    },
    "dip cnn4, 1 target": {"work": "dip", "targets": 1, "iterations": 40},
    "dip cnn4, 8 targets": {"work": "dip", "targets": 8, "iterations": 15},
}
"""Names -> what a turn does; ``size`` is images in a batch, ``beside`` the method that the other side has."""

METHOD_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedproto": ({"weight": 10.0}, {"lamda": 10.0}),
}
"""Options that make both the same method: fedpriv's, HtFLlib's."""


# ---------------------------------------------------------------- a side's own process


class Turns:
    """Turns of this process: called at the beginning of each, it reports the one before and waits for the next."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._began: float | None = None

    def __call__(self) -> None:
        """Report the CPU seconds since the last call; wait for a line of standard input, and end where none comes."""
        if self._began is not None:
            print(json.dumps(time.process_time() - self._began), file=self._out, flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        self._began = time.process_time()

    def run(self, work: Callable[[], object]) -> None:
        """Do the same work every turn."""
        while True:
            self()
            work()


def random_images(options: Any) -> Any:
    """Return a data set of noise ``(n, 3, 32, 32)``, uint8, as many of each of ten classes as are wanted."""
    import torch

    from fedpriv.datasets.types import Dataset, Samples

    n = 10 * options.per_class
    rng = torch.Generator().manual_seed(options.seed)
    images = torch.randint(0, 256, (n, 3, SIDE, SIDE), generator=rng, dtype=torch.uint8)
    return Dataset("random", Samples(images, torch.arange(n) % 10), tuple(f"class {c}" for c in range(10)))


def some_images(count: int, seed: int) -> tuple[Any, Any]:
    """Return random images ``(count, 3, 32, 32)`` in [0, 1] and labels ``(count,)``."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, SIDE, SIDE, generator=rng), torch.randint(0, 10, (count,), generator=rng)


def representations(targets: int, seed: int) -> tuple[Any, Any, Any]:
    """Return a network, labels ``(n,)``, and its representations ``(n, 512)`` of random images."""
    import torch

    from fedpriv.models.build import build_model
    from fedpriv.models.split import Blueprint

    images, labels = some_images(targets, seed)
    model = build_model(Blueprint("cnn4", (3, SIDE, SIDE), 10, 512), seed).eval().requires_grad_(False)
    with torch.no_grad():
        return model, labels, model.represent(images)


def run_config(case: dict[str, Any]) -> Any:
    """Return a run: Dirichlet 0.1, batches of 10 in stored order without tails, one local epoch, SGD of 0.01."""
    from fedpriv.datasets.partition import PartitionOptions
    from fedpriv.federation.method import LocalTraining
    from fedpriv.federation.run_directory import RunConfig

    os.environ["FEDPRIV_ALLOW_CODE"] = "speed"  # whose function the data set is
    return RunConfig(
        method=case["method"],
        options=METHOD_OPTIONS.get(case["method"], ({}, {}))[0],
        dataset="speed:random_images",
        image_size=SIDE,
        per_class=case["per_class"],
        auxiliary=0.0,
        partition=PartitionOptions(alpha=0.1),
        clients=CLIENTS,
        rounds=ENDLESS,
        models="cnn4",
        training=LocalTraining(drop_last=True, shuffle=False),
        seed=case["seed"],
        capture="none",
    )


def rounds_by_fedpriv(case: dict[str, Any], turns: Turns) -> None:
    """Run a federation, a round a turn: from the beginning of one to the beginning of the next."""
    import torch

    from fedpriv.federation.rounds import run, run_clients
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.sources.run import prepare

    torch.set_num_threads(1)
    config = run_config(case)
    federation = prepare(config, torch.device("cpu"))

    def engine(federation: Any, jobs: Any) -> Iterator[Any]:
        turns()
        yield from run_clients(federation, jobs)

    run(federation, RunDirectory.create(Path(case["scratch"]) / "run", config), engine)


def clients_by_fedpriv(case: dict[str, Any], turns: Turns) -> None:
    """Do all clients' part of the first round, training and upload, every turn."""
    import torch

    from fedpriv.federation.rounds import run, run_clients
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.sources.run import prepare

    torch.set_num_threads(1)
    os.environ["FEDPRIV_ALLOW_CODE"] = "speed"  # whose function the data set is
    config = run_config(case)
    federation = prepare(config, torch.device("cpu"))

    def engine(federation: Any, jobs: Any) -> Iterator[Any]:
        turns.run(lambda: list(run_clients(federation, jobs)))
        yield

    run(federation, RunDirectory.create(Path(case["scratch"]) / "run", config), engine)


def rounds_by_peer(case: dict[str, Any], turns: Turns) -> None:
    """Run the same rounds by HtFLlib, on the images that fedpriv divides."""
    import numpy as np
    import torch
    from htfllib_peer import server_of

    from fedpriv.datasets.types import as_unit
    from fedpriv.federation.prepared import load_data

    torch.set_num_threads(1)
    scratch = Path(case["scratch"]).resolve()
    federated, _ = load_data(run_config(case))
    for client in range(CLIENTS):
        for part, samples in (("train", federated.train(client)), ("test", federated.test(client))):
            folder = scratch / "dataset" / "random" / part
            folder.mkdir(parents=True, exist_ok=True)
            scaled = (as_unit(samples.images).numpy() - 0.5) / 0.5
            data = {"x": scaled.astype("float32"), "y": samples.labels.numpy()}
            np.savez_compressed(folder / f"{client}.npz", data=np.array(data))
    for folder in (scratch / "models", scratch / "system"):
        folder.mkdir()
    system = (Path(case["htfllib"]) / "system").resolve()
    os.chdir(scratch / "system")  # its data sets are found from there
    np.random.seed(case["seed"])  # noqa: NPY002  # the generator which that library draws from
    random.seed(case["seed"])
    torch.manual_seed(case["seed"])
    given = {"dataset": "random", "num_clients": CLIENTS, "global_rounds": ENDLESS, "eval_gap": 1}
    given |= METHOD_OPTIONS.get(case["method"], ({}, {}))[1]
    server = server_of(case["method"], given, system, scratch / "models")
    select = server.select_clients

    def begin_round() -> Any:
        turns()
        return select()

    server.select_clients = begin_round
    server.train()


def gradients_by_fedpriv(case: dict[str, Any], turns: Turns) -> None:
    """Attack all uploads: as many evaluations as the peer, no start drawn anew, none ended early."""
    import torch
    from one_step import problem_of, run_attack

    from fedpriv.attacks.gradients.dlg import DeepLeakage
    from fedpriv.attacks.gradients.inverting import InvertingGradients

    torch.set_num_threads(1)
    images, labels = some_images(case["targets"] * case["size"], case["seed"])
    problem = problem_of(case["net"], images, labels, 10, case["seed"], batch_size=case["size"], steps=1)
    attack = (
        DeepLeakage(outer_steps=case["steps"], redraws=0, stop_below=0.0)
        if case["attack"] == "dlg"
        else InvertingGradients(iterations=case["steps"], total_variation=0.06)
    )
    turns.run(lambda: run_attack(attack, problem, case["seed"]))


def gradients_by_peer(case: dict[str, Any], turns: Turns) -> None:
    """Attack the same uploads by ``breaching`` in as many steps."""
    import torch
    from breaching_peer import attack_by_peer, imported
    from one_step import problem_of

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    peer = imported()
    images, labels = some_images(case["targets"] * case["size"], case["seed"])
    problem = problem_of(case["net"], images, labels, 10, case["seed"], batch_size=case["size"], steps=1)
    name, overrides = "invertinggradients", ["regularization.total_variation.scale=0.2"]
    if case["attack"] == "dlg":
        name, overrides = "deepleakage", ["attack_type=optimization"]
    overrides = [*overrides, f"optim.max_iterations={case['steps']}"]
    turns.run(lambda: attack_by_peer(peer, problem, name, overrides, case["seed"]))


def dip_by_fedpriv(case: dict[str, Any], turns: Turns) -> None:
    """Invert the representations, all side by side."""
    import torch

    from fedpriv.attacks.inputs.targets import list_targets
    from fedpriv.attacks.inversion.vector import DipInversion
    from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
    from fedpriv.uploads.payloads import Representations

    torch.set_num_threads(1)
    model, labels, features = representations(case["targets"], case["seed"])
    observations = (Observation(0, 0, (Representations(features, labels),), ()),)
    knowledge = Knowledge(ThreatModel(), (3, SIDE, SIDE), model.head.out_features, extractors={0: model.represent})
    targets = list_targets(observations, "representation")
    attack = DipInversion(iterations=case["iterations"], tolerance=0.0, patience=case["iterations"] + 1)
    turns.run(lambda: attack(observations, knowledge, targets, seed=0))


def dip_by_peer(case: dict[str, Any], turns: Turns) -> None:
    """Invert them one after the other with a network of ordinary modules each."""
    import torch
    from ordinary import invert

    torch.set_num_threads(1)
    model, _, features = representations(case["targets"], case["seed"])
    turns.run(lambda: [invert(model, vector, case["iterations"]) for vector in features])


# ---------------------------------------------------------------- turns of two processes


class Contender:
    """A side in its own process; ``python_path`` says which fedpriv it imports, with that checkout's own script."""

    def __init__(self, side: str, case: dict[str, Any], python_path: Path, scratch: Path) -> None:
        scratch.mkdir()
        here = python_path / HERE.name if (python_path / HERE.name / "speed.py").is_file() else HERE
        paths = [str(python_path), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        command = [
            sys.executable,
            str(here / "speed.py"),
            "--side",
            side,
            json.dumps({**case, "scratch": str(scratch)}),
        ]
        self._errors = scratch / "errors.txt"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, text=True
            )

    def turn(self) -> float:
        """Take a turn and return its CPU seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            last = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise SystemExit(last[-1] if last else "a side ended without a word")
        return float(json.loads(line))

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure(case: dict[str, Any], base: Path | None, pairs: int) -> list[tuple[float, float | None]]:
    """Return the CPU seconds of each pair of turns: this checkout's, and those of the base, the peer or another method."""
    another = base is None and "beside" in case
    other = case["peer"] or base is not None or another
    with tempfile.TemporaryDirectory() as folder:
        sides = [Contender(f"{case['work']}_by_fedpriv", case, HERE.parent, Path(folder) / "a")]
        if other:
            by = "fedpriv" if base is not None or another else "peer"
            theirs = {**case, "method": case["beside"]} if another else case
            sides.append(Contender(f"{case['work']}_by_{by}", theirs, base or HERE.parent, Path(folder) / "b"))
        try:
            for side in sides:
                side.turn()
            turns = [[side.turn() for side in sides] for _ in range(pairs)]
        finally:
            for side in sides:
                side.stop()
    return [(pair[0], pair[1] if other else None) for pair in turns]


def spread(values: list[float]) -> str:
    """Return least, median and largest.

    >>> spread([3.0, 1.0, 2.0])
    '1-2-3'
    """
    return "-".join(f"{value:.3g}" for value in (min(values), statistics.median(values), max(values)))


def main() -> None:
    """Measure the cases whose names begin with one of the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="beginnings of the names of cases; all by default")
    parser.add_argument("--base", type=Path, help="another checkout of fedpriv, to stand beside")
    parser.add_argument("--peer", action="store_true", help="stand beside the peer: ordinary code, breaching, HtFLlib")
    parser.add_argument("--htfllib", help="a checkout of HtFLlib")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", nargs=2, metavar=("NAME", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        name, case = options.side
        work = getattr(importlib.import_module("speed"), name)
        work(json.loads(case), Turns())
        return
    from fedpriv.util.rates import measure_rates

    names = [name for name in CASES if not options.cases or name.startswith(tuple(options.cases))]
    if not names:
        raise SystemExit(f"no case begins with {', '.join(options.cases)}; there are {', '.join(CASES)}")
    if options.peer and options.htfllib is None and any(name.startswith("rounds") for name in names):
        raise SystemExit(
            "rounds stand beside HtFLlib: git clone https://github.com/TsingZ0/HtFLlib, then --htfllib DIR"
        )
    print(f"{measure_rates()}\n")
    print("| case | CPU s a turn | beside | ratio |\n| --- | ---: | ---: | ---: |")
    from htfllib_peer import SERVERS

    for name in names:
        if options.peer and CASES[name]["work"] == "rounds" and CASES[name]["method"] not in SERVERS:
            continue
        extra = {"seed": options.seed, "peer": options.peer, "htfllib": options.htfllib}
        pairs = measure({**CASES[name], **extra}, options.base, options.pairs)
        own, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs if pair[1] is not None]
        ratios = [a / b for a, b in pairs if b is not None]
        print(
            f"| {name} | {spread(own)} | {spread(other) if other else '–'} | {spread(ratios) if ratios else '–'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
