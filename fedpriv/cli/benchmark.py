"""``fedpriv benchmark``: speed and memory on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.experiment.benchmarks import COMPARISONS, comparisons
from fedpriv.util.errors import UserError
from fedpriv.util.folders import numbered


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=common.completed(lambda: COMPARISONS.builtins))
@click.option("--list", "only_list", is_flag=True, help="Only name the comparisons.")
@click.option(
    "--scale", default="quick", show_default=True, help="quick, or full: the sizes that the project's goals are about."
)
@click.option("--repeats", type=int, metavar="N", help="Turns of each side (default: those of the scale).")
@click.option(
    "--htfllib", type=click.Path(path_type=Path), metavar="DIR", help="A checkout of HtFLlib, for federated-round."
)
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of images, one folder a class, such as CIFAR-10's (default: random ones).",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="cpu, cuda, or auto: the CPU, and a GPU too where there is one.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of images, divisions and starts.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make (default: results/benchmark).")
@click.option("--resume", is_flag=True, help="Go on with an interrupted benchmark in --out; repeat the other flags.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
@click.pass_context
def benchmark(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    only_list: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Measure speed and memory on this machine, beside HtFLlib, breaching and plain code where they can be had.

    NAME is a comparison of: fedpriv benchmark --list (default: all). The sides of a case take turns, in CPU seconds of
    one thread; ratios are told with their least, middle and largest.
    """
    if only_list:
        _list(names, common.given(ctx) - {"only_list", "as_json", "quiet", "names"}, as_json=as_json, quiet=quiet)
        return 0
    folder = out or numbered(Path("results") / "benchmark")
    again = common.command_line(*common.anew(), *(() if out else ("--out", folder)), "--resume")
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    given = common.given_values(ctx, flags)
    found = fedpriv.benchmark(names, out=folder, listener=listener, **given)
    if as_json:
        common.print_json({"out": str(found.path), **found.record.model_dump(mode="json")})
    else:
        _print(found, quiet=quiet)
    return 1 if found.failed else 0


def _list(names: tuple[str, ...], others: set[str], *, as_json: bool, quiet: bool) -> None:
    if names or others:
        raise UserError(
            f"--list names all comparisons; drop {', '.join([*names, *(f'--{one}' for one in sorted(others))])}"
        )
    rows = comparisons()
    if as_json:
        common.print_json(rows)
    elif quiet:
        common.tell(*(row["name"] for row in rows))
    else:
        common.print_table("comparisons", rows, as_json=False)


def _print(found: fedpriv.Benchmark, *, quiet: bool) -> None:
    from fedpriv.pages.benchmark_page import goal_in_short, machine_text, notes, ratios

    if quiet:
        for case in found.record.cases:
            common.tell(f"{case.comparison}, {case.case}, {case.device}: {ratios(case)}; goal {goal_in_short(case)}")
        return
    common.print_table(f"{found.record.scale} scale: min-median-max of all turns", found.table(), as_json=False)
    for line in (*notes(found.record), machine_text(found.record.machine)):
        common.tell(*common.filled(line))
    common.tell(f"kept in {found.path}")
