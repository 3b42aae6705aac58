"""A record of speed as a table of a page, comparison by comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.scoring.records import BenchmarkCase, BenchmarkRecord, Machine, Spread
from fedpriv.scoring.records.benchmark import SideFigures

EMPTY = "–"
GPU = "cuda"


def benchmark_markdown(record: BenchmarkRecord, gpu: BenchmarkRecord | None = None, level: int = 2) -> str:
    """Return the machine and the tables as Markdown.

    Args:
        record: whose cases are told.
        gpu: of the same comparisons on another machine, for the columns of a GPU; they are filled from ``record`` where
            that has cases on one, and empty where neither has.
        level: of the headings.
    """
    parts = [machine_text(record.machine)]
    if gpu is not None:
        parts.append(f"The columns of a GPU: {machine_text(gpu.machine)}")
    there = {(case.comparison, case.case): case for case in (gpu or record).cases if case.device == GPU}
    for name in dict.fromkeys(case.comparison for case in record.cases):
        own = [case for case in record.cases if case.comparison == name]
        parts.append(f"{'#' * level} {name}\n\n{_table(own, there)}")
    told = notes(record)
    if told:
        parts.append("\n".join(f"- {line}" for line in told))
    return "\n\n".join(parts) + "\n"


def machine_text(machine: Machine) -> str:
    """Return the machine and its peaks in words."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    told = [
        f"{machine.processor}, {machine.cores} core{'s' * (machine.cores != 1)}, {machine.vector_unit}, "
        f"{machine.system}, {machine.gpu or 'no GPU'}; {versions}."
    ]
    for device in machine.matrix_gflops:
        both = (machine.matrix_gflops, machine.convolution_gflops)
        matrix, convolution = (triple(peaks[device]) if device in peaks else EMPTY for peaks in both)
        where = "One thread" if device == "cpu" else "The GPU"
        told.append(f"{where} reached {matrix} GFLOP/s in matrix products and {convolution} in convolutions.")
    return " ".join(told)


def triple(spread: Spread) -> str:
    """Return the least, the middle and the largest value: one number where they are the same.

    >>> triple(Spread.of([2.0, 1.0, 4.0])), triple(Spread.of([0.5]))
    ('1.00-2.00-4.00', '0.500')
    """
    values = list(dict.fromkeys((spread.min, spread.median, spread.max)))
    return "-".join(figure(value) for value in values)


def figure(value: float) -> str:
    """Return a number with three digits that count.

    >>> figure(1234.5), figure(12.34), figure(0.1234)
    ('1,234', '12.3', '0.123')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def measured(case: BenchmarkCase, side: SideFigures) -> str:
    """Return a side's rate where there is one, else its figure, with the unit."""
    if side.rate is not None:
        return f"{triple(side.rate)} {case.rate_unit} / {'CPU s' if case.unit == 'CPU seconds' else 's'}"
    return EMPTY if side.figure is None else f"{triple(side.figure)} {_SHORT[case.unit]}"


def ratios(case: BenchmarkCase) -> str:
    """Return every ratio in words."""
    return "; ".join(f"{triple(one.spread)} {one.says}" for one in case.ratios) or EMPTY


def beside(case: BenchmarkCase) -> str:
    """Return the other sides with their figures, or that they have none."""
    told = [
        f"{side.name}: {measured(case, side) if side.figure is not None else 'not measured'}" for side in case.sides[1:]
    ]
    return "; ".join(told) or EMPTY


def goal_in_short(case: BenchmarkCase) -> str:
    """Return the goal's bound and its verdict."""
    goal = case.goal
    if goal is None:
        return EMPTY
    bound = f"at most {goal.at_most:g}" if goal.at_most is not None else f"at least {goal.at_least:g}"
    return f"{bound}: {goal.verdict}"


def notes(record: BenchmarkRecord) -> list[str]:
    """Return why sides were not measured and verdicts cannot be told, each once."""
    missing = [side.not_measured for case in record.cases for side in case.sides if side.not_measured]
    untold = [case.goal.why for case in record.cases if case.goal is not None and case.goal.why]
    return [
        *(f"not measured: {why}" for why in dict.fromkeys(missing)),
        *(f"goals that cannot be told: {why}" for why in dict.fromkeys(untold) if why not in missing),
    ]


def reached(case: BenchmarkCase) -> str:
    """Return the goal and its verdict."""
    if case.goal is None:
        return EMPTY
    return f"{case.goal.says}: {case.goal.verdict}"


def peak(case: BenchmarkCase) -> str:
    """Return the share of the machine's peak in percent."""
    if case.peak_share is None:
        return EMPTY
    ends = (case.peak_share.min, case.peak_share.median, case.peak_share.max)
    return "-".join(dict.fromkeys(f"{100 * value:.0f}" for value in ends)) + " %"


_SHORT = {"CPU seconds": "CPU s", "wall seconds": "s", "MiB": "MiB"}


def _table(cases: Sequence[BenchmarkCase], there: Mapping[tuple[str, str], BenchmarkCase]) -> str:
    """Return one row a case, with that of a GPU beside it."""
    head = ["case", "fedpriv", "beside", "ratio", "of the peak", "goal"]
    head += ["on a GPU: fedpriv", "on a GPU: ratio", "on a GPU: of the peak"]
    lines = [head, ["---", "---:", "---", "---", "---:", "---", "---:", "---", "---:"]]
    on_cpu = {case.case: case for case in cases if case.device != GPU}
    for name in dict.fromkeys(case.case for case in cases):
        own, card = on_cpu.get(name), there.get((cases[0].comparison, name))
        shown = [EMPTY] * 5 if own is None else _cells(own)
        beside_it = [EMPTY] * 3 if card is None else [measured(card, card.sides[0]), ratios(card), peak(card)]
        lines.append([name, *shown, *beside_it])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(case: BenchmarkCase) -> list[str]:
    ours = case.sides[0]
    own = measured(case, ours) if ours.figure is not None else "not measured"
    return [cell.replace("|", "\\|") for cell in (own, beside(case), ratios(case), peak(case), reached(case))]
