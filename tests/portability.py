"""Run the suite as other machines would: narrower vector units, other counts of threads, other draws, other versions.

    python tests/portability.py                                   # the suite under every variation of this installation
    python tests/portability.py --only default,sse41 -- tests/attacks/test_dip.py
    python tests/portability.py --quick                           # the most sensitive part, on a plainer processor
    python tests/portability.py --lowest DIR --only lowest        # pyproject.toml's lower bounds, installed into DIR
    python tests/portability.py --numpy 1.26.4 DIR --only numpy   # an older numpy in DIR, in front of everything else
    python tests/portability.py --list

Prints one line a variation: tests that passed, failed and were skipped, seconds, and the names of those that failed. The
exit code is 1 if any test failed or a run did not come to its end, 2 for wrong use.

A variation asks for *at most* some vector unit: on a machine without AVX-512 ``avx512`` is what ``avx2`` is. Everything
behind ``--`` goes to pytest, a part of the suite for example.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What a run inherits from none of the others.
VARIED = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS")

# Threads that wait without spinning: on a machine with other work two that spin take several times as long as one.
TWO_THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}

# Optimisers that amplify the last bit, rankings and counts of steps: what other machines fail first. Below tests/.
SENSITIVE = (
    "algebra/test_clustering.py",
    "algebra/test_matrices.py",
    "algebra/test_low_rank.py",
    "attacks/test_all_rounds.py",
    "attacks/test_class_inversion.py",
    "attacks/test_dip.py",
    "attacks/test_gradients.py",
    "attacks/test_head_update.py",
    "attacks/test_inversion.py",
    "attacks/test_inverting_gradients.py",
    "attacks/test_lbfgs.py",
    "attacks/test_linear_layer.py",
    "attacks/test_row_gradients.py",
    "attacks/test_rows.py",
    "attacks/test_sent_entries.py",
    "attacks/test_shadow.py",
    "attacks/test_unmixing.py",
    "defenses/test_privacy.py",
    "defenses/test_rules.py",
    "methods/test_averaging.py",
    "methods/test_fd.py",
    "methods/test_fedala.py",
    "methods/test_fedapen.py",
    "methods/test_fedavgdbe.py",
    "methods/test_fedgen.py",
    "methods/test_fedkd.py",
    "methods/test_fedral.py",
    "methods/test_kernels_and_prototypes.py",
    "methods/test_small_models.py",
)

# Extras that the tests need; ruff, mypy and coverage change no result.
EXTRAS = ("test", "dp")
BESIDE = ("selenium",)


@dataclass(frozen=True)
class Variation:
    """One way to run the suite.

    Attributes:
        name: what ``--only`` calls it.
        about: one line for ``--list``.
        environment: variables set for the run.
        arguments: arguments for pytest in front of the user's own.
        python: the interpreter; empty for the one that runs this script.
        path: a folder of packages that go before the interpreter's own.
    """

    name: str
    about: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    python: str = ""
    path: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes:
        passed: tests that passed.
        failed: tests that failed, those whose fixtures failed included.
        skipped: tests that were skipped.
        seconds: of the whole run.
        names: the failed tests.
        code: pytest's exit code.
    """

    passed: int
    failed: int
    skipped: int
    seconds: float
    names: tuple[str, ...]
    code: int

    @property
    def fine(self) -> bool:
        """Whether tests ran and none failed."""
        return self.code == 0 and not self.failed and self.passed > 0


ORDINARY = (
    Variation("ordinary", "one thread, what this machine has"),
    Variation("avx512", "torch's kernels with AVX-512 at most", {"ATEN_CPU_CAPABILITY": "avx512"}),
    Variation("avx2", "torch's kernels with AVX2 at most", {"ATEN_CPU_CAPABILITY": "avx2"}),
    Variation("default", "torch's kernels without AVX2", {"ATEN_CPU_CAPABILITY": "default"}),
    Variation("onednn-avx2", "oneDNN's convolutions with AVX2 at most", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Variation("sse41", "oneDNN's convolutions with SSE4.1 at most", {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    Variation("threads", "two threads", TWO_THREADS),
    Variation("seed1", "hypothesis draws from seed 1", arguments=("--hypothesis-seed=1",)),
    Variation("seed2", "hypothesis draws from seed 2", arguments=("--hypothesis-seed=2",)),
    Variation(
        "other",
        "all at once: no AVX2, SSE4.1, two threads",
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", **TWO_THREADS},
    ),
)


def bounds(project: Mapping[str, object], extras: Sequence[str] = EXTRAS, beside: Sequence[str] = BESIDE) -> list[str]:
    """Return ``name[extra]==version`` for the lower bound of every direct dependency.

    Args:
        project: the table ``project`` of pyproject.toml.
        extras: extras whose dependencies are taken too.
        beside: names from the other extras.

    Raises:
        ValueError: when a dependency has no lower bound.
    """
    dependencies, optional = project["dependencies"], project["optional-dependencies"]
    assert isinstance(dependencies, list)
    assert isinstance(optional, dict)
    lines = [*dependencies, *(line for extra in extras for line in optional[extra])]
    lines += [line for extra in optional.values() for line in extra if re.split(r"[^\w.-]", line)[0] in beside]
    found = []
    for line in dict.fromkeys(lines):
        match = re.fullmatch(r"([\w.-]+)(\[[\w,-]+\])?>=([\w.]+)", line.replace(" ", ""))
        if match is None:
            raise ValueError(f"no lower bound to install in {line!r}")
        name, extra, version = match.groups()
        found.append(f"{name}{extra or ''}=={version}")
    return found


def lowest_environment(folder: Path) -> str:
    """Return the interpreter of an environment of lowest versions, made in a folder unless it is there already."""
    python = folder / "bin" / "python"
    stamp = folder / "lower-bounds.txt"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = "\n".join(bounds(project)) + "\n"
    if not stamp.is_file() or stamp.read_text() != wanted:
        if not python.exists():
            venv.create(folder, symlinks=os.name != "nt", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted.split()], check=True)
        stamp.write_text(wanted)
    return str(python)


def older_package(requirement: str, folder: Path) -> str:
    """Return a folder that holds one package, without what it needs, in the version asked for."""
    stamp = folder / "requirement.txt"
    if not stamp.is_file() or stamp.read_text() != requirement:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
        subprocess.run([*pip, requirement], check=True)
        stamp.write_text(requirement)
    return str(folder)


def read_report(path: Path, seconds: float, code: int) -> Outcome:
    """Return the outcome that pytest's JUnit report tells; that of no tests when there is no whole report."""
    passed, skipped, names = 0, 0, []
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):
        cases = []
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            names.append(f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("tests."))
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    unique = tuple(dict.fromkeys(names))  # a test and its teardown may both fail
    return Outcome(passed, len(unique), skipped, seconds, unique, code)


def run(variation: Variation, arguments: Sequence[str], log: Path | None) -> Outcome:
    """Run pytest under a variation.

    Args:
        variation: the way to run it.
        arguments: the user's arguments for pytest.
        log: a file for what pytest says, or None.
    """
    environment = {name: value for name, value in os.environ.items() if name not in VARIED}
    environment |= {"OMP_NUM_THREADS": "1", **variation.environment}
    given = os.environ.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (variation.path, str(ROOT), given) if part)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [variation.python or sys.executable, "-m", "pytest", f"--junitxml={report}", "-p", "no:cacheprovider"]
        begun = time.monotonic()
        done = subprocess.run(
            [*command, *variation.arguments, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        outcome = read_report(report, time.monotonic() - begun, done.returncode)
    if log is not None:
        log.write_text(done.stdout)
    if not outcome.fine:
        print(done.stdout[-4000:], file=sys.stderr)
    return outcome


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the variations and end")
    parser.add_argument("--only", default="", metavar="NAMES", help="these variations, with commas between")
    parser.add_argument("--quick", action="store_true", help="the most sensitive tests, under 'other' unless --only")
    parser.add_argument("--lowest", type=Path, metavar="DIR", help="add 'lowest', whose environment is made in DIR")
    parser.add_argument("--numpy", nargs=2, metavar=("VERSION", "DIR"), help="add 'numpy': this one, put into DIR")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what pytest says in DIR/VARIATION.log")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind --")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[Variation]:
    """Return the variations that the command line asks for, environments not yet made.

    Raises:
        ValueError: for a name that is not among them.
    """
    known = list(ORDINARY)
    if options.lowest is not None:
        known.append(Variation("lowest", "every direct dependency at its lower bound"))
    if options.numpy is not None:
        known.append(Variation("numpy", f"numpy {options.numpy[0]}, all else as installed"))
    names = [name for name in options.only.split(",") if name] or (["other"] if options.quick else [])
    for name in names:
        if name not in {one.name for one in known}:
            hint = {"lowest": "; pass --lowest DIR", "numpy": "; pass --numpy VERSION DIR"}.get(name, "")
            raise ValueError(f"no variation {name!r}{hint}; there are {', '.join(one.name for one in known)}")
    return [one for one in known if not names or one.name in names]


def prepared(variation: Variation, options: argparse.Namespace) -> Variation:
    """Return a variation with its interpreter or folder of packages, made where missing."""
    if variation.name == "lowest":
        return Variation(variation.name, variation.about, python=lowest_environment(options.lowest.resolve()))
    if variation.name == "numpy":
        version, folder = options.numpy
        return Variation(
            variation.name, variation.about, path=older_package(f"numpy=={version}", Path(folder).resolve())
        )
    return variation


def sensitive() -> list[str]:
    """Return the paths of the most sensitive tests.

    Raises:
        ValueError: when one is not there.
    """
    missing = [name for name in SENSITIVE if not (ROOT / "tests" / name).is_file()]
    if missing:
        raise ValueError(f"no file of tests {', '.join(missing)}")
    return [f"tests/{name}" for name in SENSITIVE]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit code."""
    options = parse(arguments)
    try:
        variations = chosen(options)
        tests = [*(sensitive() if options.quick else ("-m", "")), *options.pytest]  # all of it, slow tests included
    except ValueError as error:
        print(f"portability.py: {error}", file=sys.stderr)
        return 2
    if options.list:
        for one in variations:
            settings = " ".join([*(f"{key}={value}" for key, value in one.environment.items()), *one.arguments])
            print(f"{one.name:<12} {one.about}{f' ({settings})' if settings else ''}")
        return 0
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    print(f"{'variation':<12} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7}  failed tests", flush=True)
    fine = True
    for one in variations:
        log = None if options.logs is None else options.logs / f"{one.name}.log"
        found = run(prepared(one, options), tests, log)
        fine &= found.fine
        told = ", ".join(found.names) or ("" if found.fine else f"pytest ended with {found.code}")
        counts = f"{found.passed:>6} {found.failed:>6} {found.skipped:>7} {found.seconds:>7.0f}"
        print(f"{one.name:<12} {counts}  {told}".rstrip(), flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
