"""Links in every place that a command writes to: none is followed, and nothing outside the folder changes.

    python benchmarks/faults/links.py

A command's finished folder shows all its places; of those that differ in numbers alone the last is taken. In a fresh copy
one is replaced: a file by a link to somebody's file, by a link to nothing, and by somebody's file itself (a hard link); a
folder by a link to somebody's folder. Then the command is repeated, gone on with, or told to begin anew. Prints a table;
exits with 1 where anything outside changed or a command ended in a traceback.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from kills import AGAIN, BEFORE, COMMANDS, ended, last_words, start

WAYS = ("as it was", "again", "--force")
KINDS = ("link to a file", "link to nothing", "hard link", "link to a folder")


def lay(kind: str, place: Path, outside: Path) -> bool:
    """Replace a place of a finished folder; False where the kind does not suit it."""
    if place.is_dir() != (kind == "link to a folder"):
        return False
    shutil.rmtree(outside, ignore_errors=True)
    if kind == "link to a folder":
        shutil.copytree(place, outside / "folder")
        shutil.rmtree(place)
        place.symlink_to(outside / "folder")
        return True
    outside.mkdir()
    kept = place.read_bytes()
    place.unlink()
    if kind != "link to nothing":
        (outside / "file").write_bytes(kept)
    if kind == "hard link":
        os.link(outside / "file", place)
    else:
        place.symlink_to(outside / "file")
    return True


def state(outside: Path) -> dict[str, bytes]:
    """Return all that is outside."""
    return {str(one): one.read_bytes() if one.is_file() else b"" for one in outside.rglob("*")}


def command(name: str, way: str) -> list[str]:
    """Return a command as it was typed first, as it goes on, or as it begins anew."""
    words = shlex.split(AGAIN[name] if way == "again" else COMMANDS[name])
    return [*words, "--force"] if way == "--force" else words


def main() -> int:
    """Try every kind of link in every place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help=f"of {', '.join(COMMANDS)}; all by default")
    options = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outside = Path(folder) / "outside"
        for line in BEFORE:
            ended(start(shlex.split(line)))
        print("| command | places | trials | refused | wrong |\n| --- | ---: | ---: | ---: | ---: |")
        for name in options.commands or COMMANDS:
            shutil.rmtree("whole", ignore_errors=True)
            shutil.rmtree("made", ignore_errors=True)
            if ended(start(shlex.split(COMMANDS[name]))):
                raise SystemExit(last_words())
            Path("made").rename("whole")
            every = sorted(one.relative_to("whole") for one in Path("whole").rglob("*"))
            places = [*{re.sub(r"\d+", "N", str(one)): one for one in every}.values()]  # of numbered ones the last
            trials = refused = 0
            wrong = list[str]()
            for place in places:
                for kind in KINDS:
                    for way in WAYS:
                        if Path("made").is_symlink():
                            Path("made").unlink()
                        shutil.rmtree("made", ignore_errors=True)
                        shutil.copytree("whole", "made")
                        if not lay(kind, Path("made") / place, outside):
                            continue
                        before = state(outside)
                        status = ended(start(command(name, way)), 120)
                        trials += 1
                        refused += status == 2
                        said = last_words()
                        if state(outside) != before:
                            wrong.append(f"{name} {way}: {kind} at {place}: changed what is outside")
                        elif status not in (0, 2) or "Traceback" in said:
                            wrong.append(f"{name} {way}: {kind} at {place}: ended in {status}: {said}")
            print(f"| {name} | {len(places)} | {trials} | {refused} | {len(wrong)} |", flush=True)
            print(*wrong, sep="\n", file=sys.stderr)
            faults += len(wrong)
        os.chdir("/")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
