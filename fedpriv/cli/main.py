"""The entry point: one group, commands loaded when they are used, and the exit codes.

0 done, 1 the work failed, 2 wrong use or bad input (one line, no traceback), 130 interrupted.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

import rich_click as click

from fedpriv import __version__
from fedpriv.util.arguments import spelled
from fedpriv.util.errors import UserError, WorkError, short_line
from fedpriv.util.memory import asked_for, ran_out

COMMANDS: dict[str, str] = {
    "train": "fedpriv.cli.train:train",
    "attack": "fedpriv.cli.attack:attack",
    "audit": "fedpriv.cli.audit:audit",
    "audit-dp": "fedpriv.cli.audit_dp:audit_dp",
    "score": "fedpriv.cli.score:score",
    "report": "fedpriv.cli.report:report",
    "compare": "fedpriv.cli.compare:compare",
    "cost": "fedpriv.cli.cost:cost",
    "reproduce": "fedpriv.cli.reproduce:reproduce",
    "list": "fedpriv.cli.list:list_names",
    "explain": "fedpriv.cli.explain:explain",
    "data": "fedpriv.cli.data:data",
    "doctor": "fedpriv.cli.doctor:doctor",
}


class LazyGroup(click.RichGroup):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command by name, or None."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedpriv")
def main() -> None:
    """Measure what a semi-honest server learns from the uploads of federated-learning clients.

    Start with: fedpriv attack --target entangled
    """


_STOPPED = threading.Event()
"""This process was interrupted."""


def entry(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code. A polite kill is treated as an interrupt from the keyboard."""
    gc.set_threshold(100_000)  # imports make some hundred thousand objects, which stay

    def stop(number: int, frame: object) -> None:
        _STOPPED.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # a second one, on the way out of the first
        code = _fail(f"interrupted{_go_on()}", 130)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to be interrupted, and the code is to be told
    # An interrupt that passed through an exec is remembered until the next one, and Python would die of it in the end.
    exec("")
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    from fedpriv.cli import common

    common.hint.clear()
    arguments = arguments or ["--help"]
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error does: no sign that it cannot show fails a command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with spelled(common.Flags()), _interrupts_kept(), _interrupts_told():
            result = main.main(args=arguments, prog_name="fedpriv", standalone_mode=False)
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        usage = f" (see: {where.command_path} --help)" if where is not None else ""
        return _fail(f"{error.format_message()}{usage}", error.exit_code)
    except UserError as error:
        return _fail(str(error), 2)
    except WorkError as error:
        return _fail(f"{error}{_go_on()}", 1)
    except OSError as error:
        if os.environ.get("FEDPRIV_DEBUG"):
            raise
        return _fail(*_refusal(error))
    except (KeyboardInterrupt, click.Abort):
        return _fail(f"interrupted{_go_on()}", 130)
    except Exception as error:
        if os.environ.get("FEDPRIV_DEBUG"):
            raise
        if ran_out(error):
            return _fail(f"out of memory: there is no room for another tensor{asked_for(error)}; {_less(arguments)}", 1)
        kind = type(error).__name__
        return _fail(f"failed: {kind}: {error} (FEDPRIV_DEBUG=1 shows the traceback)", 1)
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Deliver again an interrupt that comes while an object is being destroyed: Python would print a traceback and go on."""
    before = sys.unraisablehook

    def again(ignored: sys.UnraisableHookArgs) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, _interrupt).start()  # not now: it would come within this very function
        else:
            before(ignored)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _interrupts_told() -> Iterator[None]:
    """Tell of the interrupt, where a library that it came upon tells of something else in its place: a damaged file, say."""
    try:
        yield
    except Exception as error:
        if _STOPPED.is_set():
            raise KeyboardInterrupt from error
        raise


def _interrupt() -> None:
    """Interrupt the main thread by a true signal where there are such: that wakes it too where it waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


_UNUSABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EXDEV, errno.ENOTSUP),
)
"""What the system says of a path that cannot be used as it was named: bad input. A full disk, say, is none."""


def _refusal(error: OSError) -> tuple[str, int]:
    """Return the line and the exit code for an error of the system."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    if error.filename is None:
        return f"failed: {reason}", 1
    bad = error.errno in _UNUSABLE
    return (f"{error.filename}: {reason}; name another path", 2) if bad else (f"failed: {error.filename}: {reason}", 1)


_LESS = {
    "attack": "--chunk-rows, --workers, --targets, --image-size",
    "audit": "--chunk-rows, --workers, image_size, batch_size, clients, models",
    "audit-dp": "--canaries, --batch-size, or the size of --models",
    "score": "the number of folders at a time",
    "report": "the number of folders at a time",
}
"""What a command takes less memory with."""


def _less(arguments: Sequence[str]) -> str:
    command = next((one for one in arguments if one in COMMANDS), "train")
    return "reduce " + _LESS.get(command, "--image-size, --per-class, --batch-size, --clients, or the size of --models")


def _go_on() -> str:
    from fedpriv.cli import common

    return f"; go on with: {common.hint['resume']}" if "resume" in common.hint else ""


def _fail(line: str, code: int) -> int:
    from fedpriv.cli import common

    common.tell(f"fedpriv: {short_line(line)}", err=True)
    return code


if __name__ == "__main__":
    entry()
