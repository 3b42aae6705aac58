"""Every kind of file that fedpriv reads again, with one fault: the next command names it, or makes what it made before.

    python benchmarks/faults/silent.py --each 3 --seed 0

A small run, result, study and recording are made; then, in a fresh copy for each trial, one of their files has a bit
flipped, a digit replaced, its end cut off, or is deleted, and the folder is read. Prints a table; exits with 1 where nothing
is said and the pages, tables or tensors that come of it are not those of the untouched folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hostile import STUDY, carry_out, world

from fedpriv.federation.capture import load_trace
from fedpriv.federation.run_directory import SERVER, RunDirectory
from fedpriv.federation.states import load_state
from fedpriv.integrations.recorder import Recorder
from fedpriv.integrations.run import RecordedRun
from fedpriv.util.errors import UserError
from fedpriv.util.files import LOCK

READ = {"run": "report run", "attacked": "report attacked", "study": "report study"}
"""Folders, and commands that read them."""

ON_THE_PAGE = ("altered: it is not what fedpriv wrote there", "the private truth was left out of this directory")
"""What stands in the place of a picture."""


def fill(folder: Path) -> None:
    """Add to the world a result of two attacks, a study and a recording."""
    (folder / "study.toml").write_text(STUDY.replace('"dip"', '"pixels", "membership"').replace("targets = 2\n", ""))
    shutil.rmtree(folder / "attacked")
    for words in (
        "attack --run run --target prototype --attack dip --attack membership --iterations 2 --targets 2 --out attacked",
        "audit study.toml --iterations 2 --targets 2 --out study",
    ):
        outcome = carry_out([*words.split(), "--quiet"], folder)
        if outcome.code:
            raise RuntimeError(f"{words}: {outcome.err}")
    recorder = Recorder(folder / "recording", "by hand 1.0")
    for number in (1, 2):
        recorder.broadcast(number, ["a", "b"], {"arrays": {"weight": torch.arange(6.0) + number}})
        for client in ("a", "b"):
            recorder.upload(number, client, {"arrays": {"weight": torch.rand(6)}}, facts={"images": 10})
        recorder.settled(number)
    recorder.failed(3, "a", "a reason")
    recorder.close()


def flip(content: bytearray, rng: random.Random) -> None:
    """Flip one bit."""
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def edit(content: bytearray, rng: random.Random) -> None:
    """Put another digit in a digit's place, or where there is none change the last byte, which is a tensor's."""
    digits = [place for place, byte in enumerate(content) if byte in b"0123456789"]
    place = rng.choice(digits) if digits else len(content) - 1
    content[place] = ord(str((int(chr(content[place])) + 1) % 10)) if digits else content[place] ^ 1


def cut(content: bytearray, rng: random.Random) -> None:
    """Cut off the end, at a line's end where there are several."""
    ends = [place + 1 for place, byte in enumerate(content[:-1]) if byte == ord("\n")]
    del content[rng.choice(ends) if ends and rng.random() < 0.5 else rng.randrange(len(content)) :]


FAULTS: dict[str, Callable[[bytearray, random.Random], None] | None] = {
    "flip": flip,
    "edit": edit,
    "cut": cut,
    "delete": None,
}


def run_tensors(path: Path) -> list[Any]:
    """Return all that attacks and scorers read of a run."""
    run = RunDirectory.open(path)
    messages = [
        run.message(file) for part in ("uploads", "broadcasts") for file in sorted((path / part).rglob("*.safetensors"))
    ]
    states = [sorted(load_state(file).items()) for file in [*run.state_paths(2), run.checkpoint_path(2) / SERVER]]
    traces = [
        load_trace(run, round_, client) for round_, clients in run.captured_rounds().items() for client in clients
    ]
    return [
        run.config,
        run.lines("ledger"),
        run.lines("timings"),
        messages,
        states,
        run.load_checkpoint(2).broadcast,
        traces,
    ]


def recorded_tensors(path: Path) -> list[Any]:
    """Return all that attacks read of a recording."""
    run = RecordedRun.open(path)
    seen = [message for number in run.rounds() for message in run.messages(number)]
    return [run.framework, run.named_by_data, run.notes(), [(one, run.arrays(one)) for one in seen]]


TENSORS = {"run": run_tensors, "recording": recorded_tensors}


def figures(name: str, folder: Path) -> tuple[str, str]:
    """Return what is wrong with a folder in the words of who reads it, and all that comes of it in one text."""
    try:
        tensors = repr(TENSORS[name](folder / name) if name in TENSORS else "")
    except UserError as error:
        return str(error), ""
    if name not in READ:
        return "", tensors
    outcome = carry_out([*READ[name].split(), "--out", "new"], folder)
    wrong = "; ".join(outcome.faults("report")) or (outcome.err if outcome.code else "")
    notices = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    made = [path for path in sorted((folder / "new").rglob("*.*")) if path.is_file() and not path.name.startswith(".")]
    return " ".join([wrong, *notices]).strip(), tensors + "".join(path.read_text() for path in made)


def trials(name: str, home: Path, each: int, seed: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Carry out trials with each file of a folder; return how many faults of each kind ended how, and the silent ones."""
    ends, silent = Counter[tuple[str, str]](), list[str]()
    trial = home.parent / "trial"
    shutil.copytree(home / name, trial / name)
    said, before = figures(name, trial)
    for path in sorted(path for path in (home / name).rglob("*") if path.is_file() and path.name != LOCK):
        for fault, change in FAULTS.items():
            for number in range(each if change else 1):
                shutil.rmtree(trial)
                shutil.copytree(home / name, trial / name)
                here = trial / path.relative_to(home)
                content, rng = bytearray(here.read_bytes()), random.Random(f"{seed} {number} {fault} {path.name}")
                here.unlink()  # and a new inode, as an edit makes
                if change is not None:
                    change(content, rng)
                    here.write_bytes(content)
                now, after = figures(name, trial)
                named = now != said or any(words in after and words not in before for words in ON_THE_PAGE)
                end = "named" if named else "harmless" if after == before else "silent"
                ends[fault, end] += 1
                if end == "silent":
                    silent.append(f"{path.relative_to(home)}: {fault} {number}")
    shutil.rmtree(trial)
    return ends, silent


def program() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=3, help="trials for each file and kind of fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*READ, "recording"], help="one of the folders")
    options, began, silent = parser.parse_args(), time.monotonic(), list[str]()
    print("| folder | fault | named | harmless | silent |\n| --- | --- | ---: | ---: | ---: |")
    torch.set_printoptions(profile="full", precision=9)
    with world() as home:
        fill(home)
        for name in [options.only] if options.only else [*READ, "recording"]:
            ends, found = trials(name, home, options.each, options.seed)
            silent += found
            for fault in FAULTS:
                counts = " | ".join(str(ends[fault, end]) for end in ("named", "harmless", "silent"))
                print(f"| {name} | {fault} | {counts} |", flush=True)
    print(f"\nseed {options.seed}, {time.monotonic() - began:.0f} s", *silent, sep="\n")
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(program())
