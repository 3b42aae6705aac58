"""Commands of fedpriv as processes that can be started by the thousand, killed at any point, and compared.

A command runs in a process forked from this one, which has loaded everything that commands load; workers that it starts
are forked from it in turn. In such processes clocks stand still and identities are all the same, so that two results are
equal byte for byte or not at all. Where a process must be a real one (``python -m fedpriv``), the same is done to it by a
module that Python loads when it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LIMIT = 600.0
"""Seconds after which a command hangs."""

LATE = (
    *("PIL.JpegImagePlugin", "jinja2", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("matplotlib.pyplot", "rich.table", "scipy.io", "scipy.optimize", "sklearn.datasets", "sklearn.decomposition"),
    *("sklearn.metrics", "torchmetrics"),
)
"""Modules of others that commands load when they need them."""

FROZEN = """import time, uuid
time.perf_counter = lambda: 0.0
uuid.uuid4 = lambda: uuid.UUID(int=1)
"""

SMALL = ["--dataset", "digits", "--per-class", "12", "--clients", "3", "--partition", "iid", "--rounds", "2"]
CHEAP = ["--attack", "pixels", "--attack", "membership", "--iterations", "3", "--targets", "2"]
STUDY = """methods = ["fedproto"]
defenses = ["none", { name = "noise", scale = 0.5 }]
attacks = [{ name = "pixels", iterations = 3 }, "membership"]
targets = 2
local = false

[federation]
dataset = "digits"
per-class = 12
clients = 3
partition = "iid"
rounds = 2
"""


@dataclass(frozen=True)
class Ended:
    """A process that ended.

    Attributes:
        code: exit code; negative for a signal; None where it hung and was killed for that.
        out, err: what it wrote.
        began, ended: by the monotonic clock.
    """

    code: int | None
    out: str
    err: str
    began: float
    ended: float

    @property
    def refused(self) -> bool:
        """True for a refusal as it should be: exit code 2 and one line."""
        return self.code == 2 and self.err.startswith("fedpriv: ") and self.err.count("\n") == 1

    @property
    def told(self) -> str:
        """The exit code and the end of what was written to standard error, in one line."""
        return f"exit {self.code}: {' / '.join(self.err.strip().splitlines()[-3:])[-300:]}"


class Command:
    """A command of fedpriv at work in a folder, in a process of its own."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, *, inside: Callable[[], None] | None = None, real: bool = False
    ) -> None:
        """Start it.

        Args:
            arguments: as on the command line.
            folder: to be in; ``folder/tmp`` is made, for temporary files.
            inside: called in the process before the command; not for a real one.
            real: start Python anew.
        """
        (folder / "tmp").mkdir(exist_ok=True)
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  (read when it ends)
        self.began = _now()
        self.pid = (
            _start_real(arguments, folder, self._out, self._err)
            if real
            else _fork(arguments, folder, self._out, self._err, inside)
        )
        self._code: int | None = None

    def running(self) -> bool:
        """True until it ends."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is None

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; return whether it ended."""
        until = _now() + seconds
        while self.running():
            if _now() >= until:
                return False
            time.sleep(0.005)
        return True

    def send(self, number: int) -> bool:
        """Send a signal; return whether it still ran."""
        if not self.running():
            return False
        os.kill(self.pid, number)
        return True

    def end(self, limit: float = LIMIT) -> Ended:
        """Wait for its end and return it."""
        hung = not self.wait(limit)
        if hung:
            self.send(signal.SIGKILL)
            self.wait(10)
        ended = _now()
        said = []
        for file in (self._out, self._err):
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))
            file.close()
        return Ended(None if hung else self._code, said[0], said[1], self.began, ended)


def run(arguments: Sequence[str], folder: Path, **how: Any) -> Ended:
    """Run a command to its end."""
    return Command(arguments, folder, **how).end()


_now = time.monotonic


# ---------------------------------------------------------------- processes


def prepare() -> None:
    """Load everything, stop clocks, and become whom orphans of what is started here fall to."""
    import fedpriv

    for found in pkgutil.walk_packages(fedpriv.__path__, "fedpriv."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in LATE:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    exec(FROZEN, {})
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    gc.collect()
    gc.freeze()  # or every process copies all that is loaded here as soon as it collects garbage


def _fork(
    arguments: Sequence[str], folder: Path, out: IO[bytes], err: IO[bytes], inside: Callable[[], None] | None
) -> int:
    pid = os.fork()
    if pid:
        return pid
    with _leaving():
        nothing = os.open(os.devnull, os.O_RDONLY)
        _take(nothing, out.fileno(), err.fileno())
        os.chdir(folder)
        os.environ.update(TMPDIR=str(folder / "tmp"), OMP_NUM_THREADS="1")
        tempfile.tempdir = None
        sys.argv = ["fedpriv", *arguments]
        if inside is not None:
            inside()
        from fedpriv.cli.main import entry

        entry(arguments)
    raise AssertionError  # not reached


def _start_real(arguments: Sequence[str], folder: Path, out: IO[bytes], err: IO[bytes]) -> int:
    site = folder.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(FROZEN)
    found = os.pathsep.join([str(site), *(place or os.getcwd() for place in sys.path)])
    env = {**os.environ, "PYTHONPATH": found, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedpriv", *arguments]
    # Held by nobody: its end is waited for by its number.
    return _unheld(subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err))


def _unheld(process: subprocess.Popen[bytes]) -> int:
    process.returncode = 0  # or Python waits for it too
    return process.pid


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """End this process with the block, with the exit code that Python would give it."""
    code = 1
    try:
        yield
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = 1 if isinstance(error.code, str) else error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        os._exit(code)


def _take(stdin: int, stdout: int, stderr: int) -> None:
    """Make three open files this process's own, and close all others: an end of a pipe left open is never at its end."""
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
    os.closerange(3, 4096)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)


def children() -> list[int]:
    """Return the processes below this one: what runs, and the orphans of what ran."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid():
                    if state == "Z":
                        with contextlib.suppress(ChildProcessError):
                            os.waitpid(int(place.name), os.WNOHANG)
                    else:
                        found.append(int(place.name))
    return found


def orphans(patience: float = 3.0) -> list[int]:
    """Return the processes that still run after so many seconds, and end them."""
    until = _now() + patience
    while (left := children()) and _now() < until:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


# ---------------------------------------------------------------- folders


@contextlib.contextmanager
def workplace(given: Path | None = None) -> Iterator[Path]:
    """Make a folder for trials, in memory where there is room, and remove it in the end."""
    memory = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="faults-", dir=given or (memory if memory.is_dir() else None)))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def must(ended: Ended) -> Ended:
    """Return a process that ended well.

    Raises:
        RuntimeError: where it did not.
    """
    if ended.code != 0:
        raise RuntimeError(ended.told)
    return ended


def make_inputs(folder: Path) -> None:
    """Train a run, attack it, and write a study's file: ``run``, ``found`` and ``study.toml`` in a folder."""
    must(run(["train", "--method", "fedproto", *SMALL, "--out", "run", "--quiet"], folder))
    attack = ["attack", "--target", "prototype", "--run", "run", *CHEAP, "--workers", "1", "--out", "found", "--quiet"]
    must(run(attack, folder))
    (folder / "study.toml").write_text(STUDY)


def mixed(seed: int, *names: object) -> random.Random:
    """Return the generator of one trial."""
    return random.Random(f"{seed} {' '.join(map(str, names))}")
