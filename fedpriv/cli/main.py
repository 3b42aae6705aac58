"""The entry point: one group, commands loaded when they are used, and the exit codes.

0 done, 1 the work failed, 2 wrong use or bad input (one line, no traceback), 130 interrupted.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import signal
import sys

import rich_click as click

from fedpriv import __version__
from fedpriv.cli import common
from fedpriv.util.compute import ran_out
from fedpriv.util.errors import UserError, WorkError, short_line

COMMANDS: dict[str, str] = {
    "train": "runs:train",
    "attack": "attack:attack",
    "audit": "runs:audit",
    "audit-dp": "runs:audit_dp",
    "score": "attack:score",
    "report": "attack:report",
    "check": "attack:check",
    "compare": "attack:compare",
    "cost": "runs:cost",
    "reproduce": "runs:reproduce",
    "list": "runs:list_names",
    "explain": "runs:explain",
    "doctor": "runs:doctor",
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
        command: click.Command = getattr(importlib.import_module(f"fedpriv.cli.{module}"), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedpriv")
def main() -> None:
    """Measure what a semi-honest server learns from the uploads of federated-learning clients.

    Start with: fedpriv attack --target entangled
    """


def entry() -> None:
    """Run the command line and exit with its code. A polite kill is treated as an interrupt from the keyboard."""
    gc.set_threshold(100_000)  # imports make some hundred thousand objects, which stay

    def stop(number: int, frame: object) -> None:
        common.hint["interrupted"] = "yes"
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # a second one, on the way out of the first
        code = _fail(f"interrupted{_go_on()}", 130)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to be interrupted, and the code is to be told
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    common.hint.clear()
    arguments = arguments or ["--help"]
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error does: no sign that it cannot show fails a command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = main.main(args=arguments, prog_name="fedpriv", standalone_mode=False)
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        usage = f" (see: {where.command_path} --help)" if where is not None else ""
        return _fail(f"{error.format_message()}{usage}", error.exit_code)
    except UserError as error:
        return _fail(str(error), 2)
    except WorkError as error:
        return _fail(f"{error}{_go_on()}", 1)
    except (KeyboardInterrupt, click.Abort):
        return _fail(f"interrupted{_go_on()}", 130)
    except Exception as error:
        if os.environ.get("FEDPRIV_DEBUG"):
            raise
        if isinstance(error, OSError):
            return _fail(*_refusal(error))
        if ran_out(error):
            less = "chunk_rows, workers, targets, image_size, batch_size, clients, or the size of models"
            return _fail(f"out of memory: there is no room for another tensor; reduce {less}", 1)
        return _fail(f"failed: {type(error).__name__}: {error} (FEDPRIV_DEBUG=1 shows the traceback)", 1)
    return result if isinstance(result, int) else 0


_UNUSABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EXDEV, errno.ENOTSUP),
)
"""What the system says of a path that cannot be used as it was named: bad input. A full disk, say, is none."""


def _refusal(error: OSError) -> tuple[str, int]:
    """Return the line and the exit code for an error of the system."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    where = "" if error.filename is None else f"{error.filename}: "
    if where and error.errno in _UNUSABLE:
        return f"{where}{reason}; name another path", 2
    return f"failed: {where}{reason}{_go_on()}", 1


def _go_on() -> str:
    return f"; go on with: {common.hint['resume']}" if "resume" in common.hint else ""


def _fail(line: str, code: int) -> int:
    if "interrupted" in common.hint:  # an interrupt within an import may come out as any error
        line, code = f"interrupted{_go_on()}", 130
    common.tell(f"fedpriv: {short_line(line)}", err=True)
    return code
