"""Tests under other interpreters, and under the lowest versions that pyproject.toml declares.

    python benchmarks/versions.py python3.12 python3.13 -- tests/test_golden.py tests/util
    python benchmarks/versions.py python3.11 --lowest

For each interpreter a virtual environment is made, fedpriv installed from this checkout with its tests, and pytest run on
what follows ``--`` (all by default). Prints a line each, and exits with 1 where one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent


def lowest() -> list[str]:
    """Return each declared dependency of the package and of its tests, at the least version that is allowed."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [line.replace(">=", "==") + ("" if line.count(".") > 1 else ".*") for line in needed]


def main() -> int:
    """Install and test, one interpreter after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreters", nargs="+")
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--folder", type=Path, help="where environments are kept (default: a temporary one)")
    words = sys.argv[1:]
    tests = words[words.index("--") + 1 :] if "--" in words else []
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for interpreter in options.interpreters:
            name = f"{Path(interpreter).name}{'-lowest' if options.lowest else ''}"
            folder = (options.folder or Path(scratch)) / name
            python = str(folder / "bin" / "python")
            if not Path(python).exists():
                subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
                install = [python, "-m", "pip", "install", "-q", f"{HOME}[test]", *(lowest() if options.lowest else [])]
                if subprocess.run(install, check=False).returncode:
                    print(f"{name}: cannot be installed here", flush=True)
                    continue
            done = subprocess.run(
                [python, "-m", "pytest", "-W", "ignore", "-p", "no:cacheprovider", *tests],
                cwd=HOME,
                capture_output=True,
                text=True,
            )
            failed |= done.returncode != 0
            print(f"{name}: {(done.stdout.strip().splitlines() or ['nothing was run'])[-1]}", flush=True)
            if done.returncode:
                print("\n".join(done.stdout.splitlines()[-30:]), file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
