"""The verb ``benchmark``: speed and memory on this machine, beside others and beside what the project asks of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

from fedpriv.experiment.benchmarks import COMPARISONS
from fedpriv.experiment.benchmarks.contract import Asked
from fedpriv.experiment.benchmarks.machine import machine
from fedpriv.experiment.benchmarks.running import Planned, measure, peaks, planned, results
from fedpriv.experiment.federation_settings import refuse_small, refuse_unknown, texts
from fedpriv.experiment.results_folder import differences
from fedpriv.experiment.saving import Tabular, copy_folder
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.pages.benchmark_page import beside, goal_in_short, measured, peak, ratios
from fedpriv.scoring.records import BenchmarkCase, BenchmarkRecord
from fedpriv.scoring.records.benchmark import Scale
from fedpriv.scoring.storage import write_record
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, unknown_name
from fedpriv.util.files import read_json, write_json
from fedpriv.util.foreign import given_path
from fedpriv.util.listener import SILENT, Listener

KIND = "benchmark"
ASKED = "asked.json"


@dataclass(frozen=True)
class Benchmark(Tabular):
    """Comparisons of speed and memory.

    A temporary folder (no ``out``) is removed when nothing refers to this object any more.

    Attributes:
        path: folder of ``benchmark.json`` and of the turns behind it.
        record: the machine, and every case with its ratios and goals.
    """

    path: Path
    record: BenchmarkRecord
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    @property
    def failed(self) -> tuple[BenchmarkCase, ...]:
        """Cases whose own side failed."""
        return tuple(case for case in self.record.cases if case.sides[0].failed)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a case, figures as text: the least, the middle and the largest of all turns."""
        return [
            {
                "comparison": case.comparison,
                "case": case.case,
                "device": case.device,
                "fedpriv": measured(case, case.sides[0]),
                "beside": beside(case),
                "ratio": ratios(case),
                "of the peak": peak(case),
                "goal": goal_in_short(case),
            }
            for case in self.record.cases
        ]

    def save(self, out: str | Path, *, force: bool = False) -> Benchmark:
        """Copy the folder to one that stays, and return it from there."""
        copy_folder(self.path, Path(out), KIND, force=force)
        return Benchmark(Path(out), self.record)


class BenchmarkSettings(TypedDict, total=False):
    """Keyword arguments beside names and scale.

    Attributes:
        repeats: turns of each side, in place of those of the scale.
        htfllib: a checkout of HtFLlib, which ``federated-round`` stands beside.
        images: a folder of images, one folder a class, in place of random ones.
        device: ``cpu``, ``cuda``, or ``auto`` (default) for the CPU and, where there is one, a GPU.
        seed: of images, divisions and starts (default 0).
        resume: go on with an interrupted benchmark in ``out``; repeat the other arguments.
        force: replace ``out`` if it exists.
    """

    repeats: int | None
    htfllib: str | Path | None
    images: str | Path | None
    device: str
    seed: int
    resume: bool
    force: bool


def benchmark(
    names: str | Sequence[str] = (),
    *,
    scale: str = "quick",
    out: str | Path | None = None,
    listener: Listener = SILENT,
    **settings: Unpack[BenchmarkSettings],
) -> Benchmark:
    """Measure speed and memory on this machine, turn by turn, beside others where they can be had.

    Each side of a case works in a process of its own, one thread each, and they take turns, so that a load that comes and
    goes is on all of them. CPU seconds are measured, of whole commands those that pass, and on a GPU too.

    Args:
        names: of comparisons, or one name (default: all); ``fedpriv benchmark --list`` has them.
        scale: ``quick``, or ``full``: the sizes that the project's own goals are about.
        out: folder to make; None for a temporary one, which is gone with the returned object.
        listener: hears of the progress.
        settings: see :class:`BenchmarkSettings`.

    Raises:
        UserError: naming the argument that is wrong, before anything is measured.
    """
    refuse_unknown(settings, BenchmarkSettings.__optional_keys__)
    wanted = texts("names", names)
    asked, devices, pairs = _checked(wanted, scale, settings)
    resume, force = settings.get("resume", False), settings.get("force", False)
    if resume and force:
        raise UserError(f"{argument('resume')} and {argument('force')} exclude each other")
    if resume and out is None:
        raise UserError(f"{argument('resume')} needs {argument('out')}")
    folder, scratch = place(out)
    around = {
        name: None if (given := settings.get(name)) is None else Path(str(given)) for name in ("htfllib", "images")
    }
    folders.refuse_overlap(folder, {argument(name): path for name, path in around.items()})
    chosen = [name for name in COMPARISONS.builtins if not wanted or name in wanted]
    cases = planned(chosen, asked, devices, pairs)
    with folders.output(folder, KIND, force=force, resume=resume, listener=listener):
        _same(folder, chosen, asked, devices, pairs, resume=resume)
        listener.resumable()
        measure(folder, cases, listener)
        record = _record(folder, cases, asked, scale, _command(wanted, scale, asked))
        write_record(folder, record)
    return Benchmark(folder, record, scratch)


def _checked(
    names: Sequence[str], scale: str, settings: BenchmarkSettings
) -> tuple[Asked, tuple[str, ...], int | None]:
    """Return the request, the devices, and the number of pairs; all checked."""
    for name in names:
        if name not in COMPARISONS.builtins:
            raise unknown_name("comparison", name, COMPARISONS.builtins)
    if scale not in get_args(Scale):
        raise unknown_name("scale", scale, get_args(Scale))
    pairs, seed = settings.get("repeats"), settings.get("seed", 0)
    refuse_small({"repeats": 1 if pairs is None else pairs}, ("repeats",))
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"{argument('seed', seed)}: expected a whole number from 0 on")
    checkout = _folder("htfllib", settings.get("htfllib"))
    images = _folder("images", settings.get("images"))
    if checkout is not None and not (Path(checkout) / "system" / "flcore").is_dir():
        raise UserError(f"{argument('htfllib', checkout)}: no checkout of HtFLlib; it would hold system/flcore/")
    asked = Asked(scale == "full", seed=seed, htfllib=checkout, images=images)
    return asked, _devices(settings.get("device", "auto")), pairs


def _folder(name: str, given: str | Path | None) -> str | None:
    """Return the absolute path of a folder."""
    if given is None:
        return None
    path = given_path(argument(name), given)
    if not path.is_dir():
        raise UserError(f"{argument(name, str(path))}: no such folder")
    if name == "images" and not any(entry.is_dir() for entry in os.scandir(path)):
        raise UserError(f"{argument(name, str(path))}: no folders in it; expected one folder of images a class")
    return os.fspath(path.resolve())


def _devices(name: str) -> tuple[str, ...]:
    from fedpriv.util.device import pick_device

    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"{argument('device', name)}: expected auto, cpu or cuda")
    kind = pick_device(name).type
    return ("cpu", "cuda") if name == "auto" and kind == "cuda" else (kind,)


def _same(
    folder: Path, names: Sequence[str], asked: Asked, devices: Sequence[str], pairs: int | None, *, resume: bool
) -> None:
    """Note what is asked for; of a benchmark that is resumed, check that it is the same.

    Raises:
        UserError: where it is another.
    """
    told = {
        **{"names": list(names), "scale": "full" if asked.full else "quick", "repeats": pairs, "seed": asked.seed},
        **{"devices": list(devices), "htfllib": asked.htfllib, "images": asked.images},
    }
    if not resume:
        write_json(folder / ASKED, told)
        return
    changed = differences(read_json(folder / ASKED), told)
    if changed:
        what = ", ".join(argument("device" if name == "devices" else name) for name in changed)
        raise UserError(f"{folder}: was asked for with other {what}; repeat them, or choose another {argument('out')}")


def _record(folder: Path, cases: Sequence[Planned], asked: Asked, scale: str, command: str) -> BenchmarkRecord:
    return BenchmarkRecord.model_validate(
        {
            "scale": scale,
            "seed": asked.seed,
            "images": "random" if asked.images is None else "folder",
            "command": command,
            "machine": machine(*peaks(folder, cases)),
            "cases": results(folder, cases),
        }
    )


def _command(names: Sequence[str], scale: str, asked: Asked) -> str:
    """Return the command that measures the same, without paths."""
    parts = ["fedpriv", "benchmark", *names, "--scale", scale, *(["--seed", str(asked.seed)] if asked.seed else [])]
    parts += ["--htfllib", "DIR"] if asked.htfllib else []
    return " ".join([*parts, *(["--images", "DIR"] if asked.images else [])])
