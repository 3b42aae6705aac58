"""Comparisons of speed and memory on the user's own machine, one a file, each side of a case in a process of its own."""

from __future__ import annotations

from fedpriv.util.registry import Registry

COMPARISONS = Registry(
    "comparison",
    {
        "federated-round": "fedpriv.experiment.benchmarks.federated_round:COMPARISON",
        "inverting-gradients": "fedpriv.experiment.benchmarks.gradient_matching:INVERTING_GRADIENTS",
        "dlg": "fedpriv.experiment.benchmarks.gradient_matching:DLG",
        "dip": "fedpriv.experiment.benchmarks.many_searches:COMPARISON",
        "scoring": "fedpriv.experiment.benchmarks.scoring_many:COMPARISON",
        "main-command": "fedpriv.experiment.benchmarks.commands:MAIN_COMMAND",
        "suites": "fedpriv.experiment.benchmarks.commands:SUITES",
        "memory": "fedpriv.experiment.benchmarks.many_clients:COMPARISON",
        "start-up": "fedpriv.experiment.benchmarks.start_up:COMPARISON",
    },
)
"""Names of comparisons, in the order in which they are made. None of their modules imports torch at its top."""


def comparisons() -> list[dict[str, str]]:
    """Return the comparisons that there are: name, summary, and what they stand beside."""
    found = []
    for name in COMPARISONS.builtins:
        one = COMPARISONS.load(name)
        found.append({"name": name, "compares": one.summary, "needs": one.peer or "nothing else"})
    return found
