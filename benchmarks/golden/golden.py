"""Compare what two revisions compute: every method, every attack on every kind of upload, the tables of their reports.

    python benchmarks/golden/golden.py                       # 4386c0d7 and HEAD
    python benchmarks/golden/golden.py --base REV --head .   # revisions or paths: . is the working tree; --only '*/dlg'
    python benchmarks/golden/golden.py --store               # new values for tests/test_golden.py

Counts of correct predictions may differ by 2, traffic by nothing, images, scores and tables by 1e-3. Exit 1 where anything
else differs, is missing, fails, or is in no case. What is to differ stands in EXPECTED with its reason.
Each revision runs its own command line, many commands in one process, so that torch is imported a few times only.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fnmatch
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = 3
DATA = "--dataset digits --per-class 60 --train-fraction 0.5 --clients 5 --partition iid --seed 0"
STEP = "--batch-size 4 --local-steps 1"
SEARCH = "--iterations 3 --targets 5"
Suites = dict[str, tuple[str, str, str, str]]
"""Commands that attack: name -> run, kind of upload, attacks, options."""
ANY = "local fedallrep fedgh fedre fd fedproto fedtgp fpl fedmrl fml lg-fedavg fedgen fedkd fedapen fedral"
SAME = "fedavg fedprox fedrep fedala fedavgdbe fedgen-homogeneous fedhenn-homogeneous"
PUBLIC = "fedhenn fedhenn-kernel fedhenn-homogeneous fedmd ds-fl"
UPDATES = "fedavg fedmrl fedrep lg-fedavg fedral fedkd"
RUNS = {name: name for name in ANY.split()} | {name: f"{name} --models small-cnn" for name in SAME.split()}
RUNS |= {name: f"{RUNS.get(name, name)} --public 20" for name in PUBLIC.split()}
RUNS |= {f"{name}-step": f"{RUNS[name]} {STEP}" for name in UPDATES.split()}
VECTORS = "dip decoder pixels all-rounds membership property"
GRADIENTS = "linear-layer dlg inverting-gradients"
INFER = "membership property"  # these have no iterations
SUITES: Suites = {
    "representation": ("fedallrep", "representation", VECTORS, SEARCH),
    "prototype": ("fedgh", "prototype", VECTORS, SEARCH),
    "entangled": ("fedre", "entangled", "dip pixels unmix membership property", SEARCH),
    "logits": ("fd", "logits", "class-inversion membership property", SEARCH),
    "kernel": ("fedhenn-kernel", "kernel", "membership property", ""),
    "public-logits": ("fedmd", "public-logits", "paired-logits membership property", SEARCH),
    "model": ("fedavg-step", "model", f"{GRADIENTS} {INFER}", SEARCH),
    "small-model": ("fedmrl-step", "small-model", f"{GRADIENTS} {INFER}", SEARCH),
    "extractor": ("fedrep-step", "extractor", f"{GRADIENTS} {INFER}", SEARCH),
    "low-rank-model": ("fedkd-step", "low-rank-model", f"{GRADIENTS} {INFER}", SEARCH),
    "classifier": ("lg-fedavg-step", "classifier", f"head-update {INFER}", SEARCH),
    "angle-matrix": ("fedral-step", "angle-matrix", f"angle-update {INFER}", SEARCH),
}
SMALL_RUNS = {"fedavg": RUNS["fedavg-step"]} | {name: name for name in ("fedgh", "fedre", "fedproto", "fd")}
SMALL_SUITES: Suites = {
    "model": ("fedavg", "model", "linear-layer", f"{SEARCH} --no-control"),
    "prototype": ("fedgh", "prototype", "dip", f"{SEARCH} --no-control"),
    "entangled": ("fedre", "entangled", "property", "--no-control"),
}
KEPT = (
    "count",
    "traffic",
    "score metrics.psnr_db.mean",
    "score floors.class_mean_image.psnr_db.mean",
    "score auc.value",
)
"""What tests/test_golden.py runs, for 2 rounds, and the quantities that it keeps of it."""
MEMBERS = "membership draws non-members anew and has other baselines, on purpose, after 4386c0d7"
EXPECTED = {"attack/*/membership:*": MEMBERS, "table/*:cell*member*": MEMBERS}
EXPECTED["attack/*/property:*"] = "property asks for the majority, and labels which classes are held, after 4386c0d7"
"""``case:quantity`` that may differ -> why. That a case fails or is missing is never covered."""
LISTS = ("methods.list", "attacks.list")
DIP = "layers of deep image priors are torch's after 4386c0d7, and Adam's first steps are nearly signs"
DRAWN = ("dip", "class-inversion", "linear-layer")
EXPECTED |= {pattern: DIP for name in DRAWN for pattern in (f"attack/*/{name}:*", f"table/*:* {name} *")}
ALSO = ("decoder", "all-rounds")
EXPECTED |= {f"attack/{kind}/{name}:*": DIP for kind in ("representation", "prototype") for name in ALSO}
EXPECTED |= {"attack/*/decoder:*": "fits follow the iterations, on purpose, after 4386c0d7"}
ROUNDED = "sixty steps of L-BFGS amplify last digits, as another processor does: derivatives are torch's after 4386c0d7"
SIXTY = ("dlg",)
EXPECTED |= {f"attack/*/{name}:*": ROUNDED for name in SIXTY}
EXPECTED |= {
    f"table/*:cell results.csv*{name} *": why for why, names in ((DIP, ALSO), (ROUNDED, SIXTY)) for name in names
}
EXPECTED["table/*:cell frontier.csv*images*"] = "the strongest attack is one of those that differ"
FINER = "total variation other digits, on purpose, after 4386c0d7"
EXPECTED["attack/*/inverting-gradients:*"] = FINER
READ = "converged and specific are two readings, and membership has other baselines, on purpose, after 4386c0d7"
READINGS = ("results.csv*verdict_reasons", "frontier.csv*verdict_kind")
EXPECTED |= {f"table/*:cell {cells}": READ for cells in READINGS} | {"table/logits:cell frontier.csv*": DIP}
WEIGHTS = "model small-model extractor low-rank-model classifier angle-matrix"
GONE = [
    ("unmix-label", "entangled"),
    ("unmix-prior", "entangled"),
    ("difference", "prototype"),
    ("average", "representation"),
    ("average", "prototype"),
]
GONE += [("likelihood-ratio", kind) for kind in WEIGHTS.split()]
GONE += [
    (name, kind) for name in ("disaggregate", "gradient-learned") for kind in ("model", "small-model", "extractor")
]
GONE += [("gradient-learned", "low-rank-model"), ("difference", "entangled"), ("simulator", "representation")]
GONE += [("disaggregate-layer", kind) for kind in ("classifier", "angle-matrix")]
GONE += [("pretrained", kind) for kind in ("entangled", "prototype", "representation")]
GONE += [("learned", kind) for kind in ("prototype", "representation")]
GONE += [
    (name, kind)
    for name in ("demix", "untransform", "gradient-dip")
    for kind in ("model", "small-model", "low-rank-model")
]
GONE += [(name, "extractor") for name in ("untransform", "gradient-dip")]
GONE += [("joint", "prototype")]
EXPECTED["attack/prototype/*:*"] = "means of one image and of several come in turns as targets, after 4386c0d7"
UNREACHED = dict.fromkeys(GONE, "is gone, on purpose, after 4386c0d7")
ASKED = sorted({target for _, target, attacks, _ in SUITES.values() if "property" in attacks.split()})
UNREACHED |= dict.fromkeys((("labels", target) for target in ASKED), "is property with question=holds")
"""(attack, target) that no command reaches -> why."""
OLD = {name: name.replace("shuffled", "permuted") for name in ("shuffled", "shuffled.safetensors", "shuffled_psnr_db")}
OLD |= {"auxiliary": "strangers", "dominated": "bettered"}
ADAPTERS: dict[str, dict[str, str]] = {"fedpriv/pipeline": {}, "fedpriv/experiment": OLD}
"""Folder that marks a side of the rebuilding -> files of results, fields, columns and words: name here -> name there."""


def adapter_of(tree: Path) -> dict[str, str]:
    """Return the names that a tree uses where they are not those used here."""
    return next(names for marker, names in ADAPTERS.items() if (tree / marker).is_dir())


def cases_of(runs: dict[str, str], suites: Suites, reports: int = PARTS) -> list[str]:
    """Return the names of all cases."""
    attacks = [f"attack/{name}/{attack}" for name, suite in suites.items() for attack in suite[2].split()]
    rows = [name for name, suite in suites.items() if set(suite[2].split()) - set(INFER.split())]  # others have none
    tables = [f"table/{name}" for name in (*rows, *(f"report-{part}" for part in range(reports)))]
    return [f"train/{run}" for run in runs] + attacks + tables


def execute(runs: dict[str, str], suites: Suites, folder: Path, names: dict[str, str], rounds: int, label: str) -> None:
    """Train and attack with the fedpriv that is imported: what a command says goes to NAME.json, its error to NAME.error."""

    def command(name: str, line: str, attacks: str = "") -> bool:
        started = time.process_time()
        words = [*line.split(), "--out", str(folder / name)]
        words += [word for attack in attacks.split() for word in ("--attack", attack)]
        words += ["--device", "cpu", "--json"]
        code, out, err = call([names.get(word, word) for word in words])
        (folder / f"{name}.{'error' if code else 'json'}").write_text(err.strip().rpartition("\n")[2] if code else out)
        print(f"{label}: {name}: exit {code}, {time.process_time() - started:.1f} s\n", end="", flush=True)
        return not code

    for run, options in runs.items():
        command(f"run-{run}", f"train {DATA} --lr 0.1 --capture all --keep all --rounds {rounds} --method {options}")
        for name, (source, target, attacks, chosen) in suites.items():
            line = f"attack --run {folder}/run-{run} --target {target} {chosen}"
            if source == run and not command(name, line, attacks):
                for attack in attacks.split():  # one that fails is not to hide the others
                    alone = line.replace("--iterations 3", "") if attack in INFER.split() else line
                    command(f"{name}-{attack}", alone, attack)


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it wrote."""
    from fedpriv.cli.main import run

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        return run(arguments), out.getvalue(), err.getvalue()


def drive(tree: Path, folder: Path, part: int, label: str, pattern: str) -> None:
    """Run a part of the plan with the fedpriv of ``tree``, and no other."""
    import fedpriv

    if tree.resolve() not in Path(fedpriv.__file__).resolve().parents:
        raise SystemExit(f"imported {fedpriv.__file__}, which is not in {tree}")
    suites = {name: suite for name, suite in SUITES.items() if fnmatch.filter(cases_of({}, {name: suite}, 0), pattern)}
    used = {f"train/{run}" for run, *_ in suites.values()} | set(fnmatch.filter(cases_of(RUNS, {}, 0), pattern))
    runs = [run for run in RUNS if f"train/{run}" in used][part::PARTS]
    execute({run: RUNS[run] for run in runs}, suites, folder, adapter_of(tree), 3, label)
    if pattern == "*":
        call(["report", *(f"{folder}/run-{run}" for run in runs), "--quiet", "--out", f"{folder}/report-{part}"])
        for name in LISTS:
            (folder / name).write_text(call(["list", Path(name).stem, "--json"])[1])


Values = dict[str, Any]
"""Quantity -> number, word or array. The first word of a quantity says how it is compared."""
TOLERANCE = {"count": 2.0, "image": 1e-3, "score": 1e-3, "cell": 1e-3}
"""Kind of quantity -> how far it may be off, images, scores and cells above 1 in parts of them; nothing for others."""
IGNORED = {"seconds", "command", "run", "cost", "version", "attack_version", "scoring_version", "not_measured"}


def flat(value: Any, path: str, here: dict[str, str]) -> Values:
    """Return the numbers, words and truth values of a record by their paths."""
    if not isinstance(value, dict | list):
        if isinstance(value, str):  # sentences may change
            return (
                {path.replace("score ", "text ", 1) if " " in value else path: here.get(value, value)} if value else {}
            )
        return {} if value is None else {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [flat(inner, f"{path}{here.get(name, name)}.", here) for name, inner in items if name not in IGNORED]
    return {key: leaf for part in parts for key, leaf in part.items()}


def train_values(folder: Path) -> Values:
    """Return counts and traffic of a run."""
    found: Values = {"bytes": (folder / "metrics.jsonl").read_text()}
    for line in map(json.loads, found["bytes"].splitlines()):
        found |= flat(line["clients"], f"count {line['round']}.", {})
        found |= flat(line["communication"], f"traffic {line['round']}.", {})
    return found


def attack_values(folder: Path, here: dict[str, str]) -> Values:
    """Return images and scores of an attack; answers are of endpoints, not of attacks."""
    from safetensors.numpy import load_file

    found: Values = {}
    for file in sorted(folder.iterdir()):
        if (name := here.get(file.name, file.name)) in ("reconstruction.safetensors", "shuffled.safetensors"):
            found |= {f"image {name[:-12]}.{key}": value for key, value in load_file(file).items()}
        elif name in ("metrics.json", "membership.json", "property.json"):
            found |= flat(json.loads(file.read_text()), "score ", here)
    return found


def table_values(folder: Path, here: dict[str, str]) -> Values:
    """Return the cells of the tables of a report, by file and row."""
    found: Values = {}
    for file in sorted(folder.glob("*.csv")):
        for number, row in enumerate(csv.DictReader(file.read_text().splitlines())):
            where = f"{here.get(file.name, file.name)} {number} {row.get('attack', '-')}"
            found[f"row {where}"] = row.get("attack") or row.get("run") or row.get("target")
            for column, cell in row.items():
                if cell and column not in IGNORED:
                    kind = "text" if " " in cell else "cell"  # sentences may change
                    found[f"{kind} {where} {here.get(column, column)}"] = here.get(cell, cell)
    return found


def collect(folder: Path, names: dict[str, str], runs: dict[str, str], suites: Suites) -> dict[str, Values]:
    """Return the values of the cases that were computed."""
    here = {there: word for word, there in names.items()}
    done = {file.stem for file in folder.glob("*.json")}
    found = {f"train/{run}": train_values(folder / f"run-{run}") for run in runs if f"run-{run}" in done}
    for suite, (_, _, attacks, _) in suites.items():
        for attack in attacks.split():
            for name in {suite, f"{suite}-{attack}"} & done:
                if (folder / name / attack).is_dir():
                    found[f"attack/{suite}/{attack}"] = attack_values(folder / name / attack, here)
    tables = [folder / suite for suite in suites if suite in done] + sorted(folder.glob("report-*"))
    return found | {f"table/{path.name}": table_values(path, here) for path in tables}


def distance(first: Any, second: Any, *, relative: bool) -> float:
    """Return how far two values are apart, large numbers in parts of them; words are 0 or infinitely far apart."""
    import numpy as np

    try:
        a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    except ValueError:
        return 0.0 if first == second else float("inf")
    if a.shape != b.shape or (~np.isfinite([a, b])).any():
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    return float((np.abs(a - b) / (np.maximum(1.0, np.abs(a)) if relative else 1.0)).max(initial=0.0))


def compare(case: str, base: Values, head: Values, strict: bool) -> tuple[str, str]:
    """Return the result of a case that both computed, and what is to be said of it."""
    worst, wrong, notes, reasons = 0.0, [], [], set()
    for key in (key for key in base if key in head):
        kind = key.split()[0]
        far = distance(base[key], head[key], relative=kind in ("image", "score", "cell"))
        if kind == "text" or (kind == "bytes" and not strict):
            notes += [f"{key} differs"] if far else []
        elif far <= TOLERANCE.get(kind, 0.0):
            worst = max(worst, far)
        elif why := [why for pattern, why in EXPECTED.items() if fnmatch.fnmatch(f"{case}:{key}", pattern)]:
            reasons.add(why[0])
        else:
            values = " -> ".join("".join(str(side[key]).split())[:16] for side in (base, head))
            wrong.append(f"{key}: {values} (by {far:.1g})")
    gone, new = [key for key in base if key not in head], [key for key in head if key not in base]
    wrong += [f"{key}: missing" for key in gone if key.split()[0] not in ("score", "cell", "text")]
    if len(gone) * 2 > len(base) or not any(key.startswith(("count", "score", "cell")) for key in base):
        wrong.append(f"only {len(base) - len(gone)} of {len(base)} quantities can be compared")
    for sign, keys in (("removed", gone), ("added", new)):
        columns = sorted({key.split()[-1] for key in keys})
        notes += [f"{len(columns)} {sign} ({', '.join(columns[:3])})"] if columns else []
    result = "DIFFERS" if wrong else "expected" if reasons else f"within {worst:.0e}" if worst else "equal"
    return result, "; ".join([*wrong[:3], *(["..."] if wrong[3:] else []), *notes[:4], *sorted(reasons)])


def compared(trees: dict[str, Path], work: Path, pattern: str, strict: bool) -> int:
    """Print the table of all cases; return the exit code."""
    found = [collect(work / side, adapter_of(tree), RUNS, SUITES) for side, tree in trees.items()]
    rows = []
    for case in fnmatch.filter(cases_of(RUNS, SUITES), pattern):
        base, head = (values.get(case) for values in found)
        row = [case, *("none" if values is None else str(len(values)) for values in (base, head))]
        if base is None or head is None:
            name = case.split("/")[1]
            errors = [file for side in trees for file in sorted((work / side).glob(f"*{name}*.error"))]
            said = "; ".join(dict.fromkeys(f"{file.parent.name}: {file.read_text()[:99]}" for file in errors))
            rows.append([*row, "FAILS IN BOTH" if base is head else "DIFFERS", said])
        else:
            rows.append([*row, *compare(case, base, head, strict)])
    if pattern == "*":
        lists = [[json.loads((work / side / name).read_text()) for name in LISTS] for side in trees]
        methods = {row["name"] for side in lists for row in side[0]} - set(RUNS)
        pairs = {(row["name"], target) for side in lists for row in side[1] for target in row["targets"].split(", ")}
        pairs -= {(attack, target) for _, target, attacks, _ in SUITES.values() for attack in attacks.split()}
        said = ", ".join([*sorted(methods), *(" on ".join(pair) for pair in sorted(pairs - set(UNREACHED)))])
        rows.append(["what no case runs", "", "", "DIFFERS" if said else "equal", said])
    shown = [["case", *trees, "result", "what differs, of so many quantities"], *rows]
    print("\n".join(f"{row[0]:<45} {row[1]:>6} {row[2]:>6}  {row[3]:<14} {row[4]}".rstrip() for row in shown))
    print("\n".join(f"not run: {' on '.join(pair)}: {why}" for pair, why in UNREACHED.items()))
    bad = [row for row in rows if row[3] in ("DIFFERS", "FAILS IN BOTH")]
    print(f"{len(rows)} cases, {len(bad)} unexpected")
    return 1 if bad or not rows else 0


def tree_of(revision: str, folder: Path) -> Path:
    """Return the tree of a path, or the package of a revision, unpacked: nothing is left in the repository."""
    if not Path(revision).is_dir():
        packed = f"{folder}.tar"
        subprocess.run(["git", "-C", REPOSITORY, "archive", "-o", packed, revision, "fedpriv"], check=True)
        shutil.unpack_archive(packed, folder, filter="data")
    return folder if not Path(revision).is_dir() else Path(revision).resolve()


def launch(label: str, tree: Path, folder: Path, part: int, pattern: str) -> int:
    """Run a part of the plan in its own process, whose progress goes to the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-W", "ignore", __file__, "--drive", str(tree), str(folder), str(part), label, pattern]
    return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


def small(folder: Path) -> dict[str, Values]:
    """Run the small plan with the fedpriv that is imported; return what tests/golden.json keeps of it."""
    execute(SMALL_RUNS, SMALL_SUITES, folder, adapter_of(REPOSITORY), 2, "small")
    found = collect(folder, adapter_of(REPOSITORY), SMALL_RUNS, SMALL_SUITES)
    cases = {case: values for case, values in found.items() if not case.startswith("table/")}
    return {case: {key: values[key] for key in values if key.startswith(KEPT)} for case, values in cases.items()}


def main() -> int:
    """Read the command line and do what it says."""
    if sys.argv[1:2] == ["--drive"]:
        drive(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
        return 0
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--base", default="4386c0d7", help="a revision or a path")
    parser.add_argument("--head", default="HEAD", help="a revision or a path")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases, as in the table: 'train/*', '*/dip'")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all that was computed in this new folder")
    parser.add_argument("--bytes", action="store_true", help="fail where metrics.jsonl is not the same to the byte")
    parser.add_argument("--store", action="store_true", help="write tests/golden.json anew")
    given = parser.parse_args()
    if not fnmatch.filter(cases_of(RUNS, SUITES), given.only):
        parser.error(f"--only: no case fits {given.only!r}; cases are train/RUN, attack/SUITE/ATTACK, table/SUITE")
    with tempfile.TemporaryDirectory() as temporary:
        if given.store:
            (REPOSITORY / "tests" / "golden.json").write_text(json.dumps(small(Path(temporary)), indent=1) + "\n")
            return 0
        work = (given.keep or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=given.keep is None)
        trees = {side: tree_of(getattr(given, side), work / f"{side}-tree") for side in ("base", "head")}
        tasks = [(side, tree, work / side, part) for part in range(PARTS) for side, tree in trees.items()]
        with ThreadPoolExecutor(given.jobs) as pool:
            codes = list(pool.map(lambda task: launch(*task, given.only), tasks))
        return 1 if any(codes) else compared(trees, work, given.only, given.bytes)


if __name__ == "__main__":
    sys.exit(main())
