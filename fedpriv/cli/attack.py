"""``fedpriv attack``, ``score``, ``report``, ``check`` and ``compare``: invert uploads, and say what that is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.attacks import refuse_unknown_target
from fedpriv.cli import common
from fedpriv.cli.options import Command, flags_of, keywords_of
from fedpriv.util.escape import command_line
from fedpriv.util.folders import numbered
from fedpriv.util.foreign import inline_values

if TYPE_CHECKING:
    from fedpriv.api.results import AttackResult
    from fedpriv.eval.answers import Answer
    from fedpriv.reports.summary import Subject


_FILES = "Uploads in files"
_UPLOADS = "Folder of state dicts (.safetensors, .npz, .pt) made elsewhere, one a client: see --help-all."
_IMAGES = "Folder of the clients' images and labels, in files named as their uploads, and one named auxiliary."
_NORMALISE = 'MEAN,STD by which training normalised images in [0, 1]; by channel "[0.5,0.4,0.3],[0.2,0.2,0.3]".'
_BEFORE = "File of the weights that all clients started from; --model package.module:FACTORY makes their network."


@click.command(cls=Command)
@flags_of(
    "attacking:attack",
    single=("reach",),
    first="target run attacks full method dataset clients defense iterations seed out",
)
@click.option("--uploads", type=click.Path(path_type=Path), help=_UPLOADS)
@click.option("--images", type=click.Path(path_type=Path), help=_IMAGES, panel=_FILES)
@click.option("--before", type=click.Path(path_type=Path), help=_BEFORE, panel=_FILES)
@click.option("--gradients", is_flag=True, help="The uploads are gradients of these weights.", panel=_FILES)
@click.option("--normalise", help=_NORMALISE, panel=_FILES)
@click.option(
    "--verbose", is_flag=True, help="A sentence on each answer, and the table of all attacks.", panel="Output"
)
@common.common_options
def attack(target: str, out: Path | None, verbose: bool, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Attack one kind of upload; write image grids, tables and a report (default folder: results/TARGET).

    Without --run a federation is trained first. Where --rounds, --lr, --batch-size, --local-steps and --models are not
    given, it takes quick settings of the target instead of the usual ones, and prints them. Uploads of trained weights
    are then attacked at several settings of local work (--reach).
    """
    refuse_unknown_target(target)
    folder = out or numbered(Path("results") / target)
    again = command_line(*common.typed(), *(() if out else ("--out", folder)), "--resume")
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    given = common.given_values(flags)
    names = ("uploads", "images", "before", "gradients", "normalise")
    files = {name: given.pop(name) for name in names if name in given}
    if files:
        given, listener.resume = _from_files(given, files), None
    work = fedpriv.attack_uploads if files else fedpriv.attack
    result = work(target=target, out=folder, listener=listener, **given)
    if as_json:
        common.print_json(_as_json(result))
    elif not quiet:
        _show(result, verbose=verbose)


def _from_files(given: dict[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``attack_uploads`` for uploads in files; flags about a federation to train are refused."""
    from fedpriv.sources.upload_files import read_upload_files

    names = {"lr": "learning_rate", "batch_size": "batch_size", "epochs": "epochs", "local_steps": "steps"}
    steps = {known: given.pop(name) for name, known in names.items() if name in given}
    model = given.pop("models", None)
    others = [name for name in given if name not in keywords_of("attacking:attack_uploads")]
    others += [name for name in ("auxiliary", "public") if name in given]
    if others or "uploads" not in files:
        flag = "--" + (others or list(files))[0].replace("_", "-")
        raise click.UsageError(f"{flag}: not with --uploads; drop it" if others else f"{flag}: needs --uploads DIR")
    where: dict[str, Any] = {"images": None, "before": None, "gradients": False, **files}
    if "normalise" in files:
        given["normalise"] = inline_values(where.pop("normalise"))
    return given | read_upload_files(model=model, steps=steps, **where)


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of("results:score", without=("results",))
@common.common_options
def score(directories: tuple[Path, ...], as_json: bool, quiet: bool, **flags: Any) -> None:
    """Score attack directories again; rewrites metrics.json and the image grid.

    Membership and property inference are not scored again: they store no scores of single candidates.
    """
    listener = common.Terminal(quiet=quiet, as_json=True)
    records = fedpriv.score(directories, listener=listener, **common.given_values(flags))
    if quiet and not as_json:
        return
    from fedpriv.reports.summary import subjects

    uploads = subjects(records)
    if as_json:
        answers = _records(answer for upload in uploads for answer in upload.answers)
        shown = {str(path): record.model_dump(mode="json") for path, record in records.items()}
        common.print_json({"attacks": shown, "answers": answers})
        return
    _show_uploads(uploads)


def _as_json(result: AttackResult) -> dict[str, Any]:
    shown = {name: record.model_dump(mode="json") for name, record in result.scores.items()}
    return {
        "out": str(result.path),
        "attacks": {name: record.model_dump(mode="json") for name, record in result.records.items()},
        **{
            kind: {name: item for name, item in shown.items() if item["kind"] == kind}
            for kind in ("membership", "property")
        },
        "answers": _records(result.answers),
    }


def _records(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    return [answer.model_dump(mode="json") for answer in answers]


def _show(result: AttackResult, *, verbose: bool) -> None:
    """Print the table of answers; the last lines are accuracy, traffic and where the page is."""
    from fedpriv.eval.words import sentence

    uploads = result.uploads
    _show_uploads(uploads)
    if verbose:
        for answer in (answer for upload in uploads for answer in upload.answers):
            common.tell(*common.filled(sentence(answer)))
        _show_attacks(uploads)
    facts = uploads[0].facts if len(uploads) == 1 else ()
    common.tell("", " · ".join([*facts, f"report: {result.path / 'report.html'}"]))


def _show_uploads(uploads: Sequence[Subject]) -> None:
    from fedpriv.reports.summary import table_lines

    for number, upload in enumerate(uploads):
        common.tell(*([""] if number else []), *table_lines(upload))


def _show_attacks(uploads: Sequence[Subject]) -> None:
    """Print a line an attack: exploratory, each with its own interval."""
    from fedpriv.eval.answers import record_of
    from fedpriv.reports.attacks import figures

    records = [record_of(result) for upload in uploads for result in upload.results.values()]
    rows = [{"attack": record.title, **figures(record)} for record in records]
    common.print_table("all attacks (exploratory)", rows)


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of("results:report", without=("results",))
@click.option("--open", "opened", is_flag=True, help="Show the page in the browser when it is made.")
@common.common_options
def report(
    directories: tuple[Path, ...], out: Path | None, opened: bool, as_json: bool, quiet: bool, **flags: Any
) -> None:
    """Report on attack and run directories, studies, and folders that hold some of them (default folder: results/report).

    Attacks give report.html, report.md, answers.csv and results.csv: what leaked. Runs give runs.html, runs.csv and
    pictures: accuracy by round and by communication.
    """
    listener = common.Terminal(quiet=quiet, as_json=True)
    folder = out or numbered(Path("results") / "report")
    written = fedpriv.report(directories, out=folder, listener=listener, **common.given_values(flags))
    if as_json:
        places = {"attacks": list(map(str, written.attacks)), "runs": list(map(str, written.runs))}
        common.print_json({"out": str(written.path), **places})
    else:
        for page in written.pages:
            common.say(f"report: {page}", quiet=quiet)
    if opened and click.launch(written.pages[0].absolute().as_uri()):
        common.tell(f"warning: no browser could be started; open {written.pages[0]}", err=True)


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of("checking:check", without=("results",))
@common.common_options
def check(directories: tuple[Path, ...], as_json: bool, quiet: bool, **flags: Any) -> int:
    """Check whether results pass a gate: exit code 0, 3 for a leak, 4 where answers are inconclusive or missing."""
    outcome = fedpriv.check(directories, **common.given_values(flags))
    if as_json:
        answers = _records(outcome.answers)
        common.print_json({"status": outcome.status, "reasons": list(outcome.reasons), "answers": answers})
    elif not quiet:
        common.tell(*(line for part in str(outcome).splitlines() for line in common.filled(part)))
    return outcome.exit_code


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@common.common_options
def compare(before: Path, after: Path, as_json: bool, quiet: bool) -> None:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise."""
    result = fedpriv.compare(before, after)
    if as_json:
        common.print_json(asdict(result) | {"verdict": result.verdict})
        return
    if not quiet:
        common.print_table(f"{before} -> {after}", [_shown(row) for row in result.rows])
    common.tell(*str(result).splitlines()[-1 if quiet else 0 :])


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row in figures that can be read: an interval in brackets, accuracies in per cent."""
    digits, unit = (3, "") if row["quantity"] == "AUC" else (1, " dB")
    shown = {"result": row["name"], "quantity": row["quantity"] or ""}
    for name in ("before", "after"):
        shown[name] = "" if row[name] is None else f"{row[name]:.{digits}f}{unit}"
    difference = "" if row["difference"] is None else f"{row['difference']:+.{digits}f}"
    interval = "" if row["low"] is None else f" [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"
    accuracies = [row[f"accuracy {when}"] for when in ("before", "after")]
    accuracy = " -> ".join("none" if item is None else f"{item:.1%}" for item in accuracies)
    return shown | {"difference [95 %]": difference + interval, "accuracy": accuracy, "verdict": row["verdict"]}
