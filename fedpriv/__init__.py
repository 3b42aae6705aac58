"""fedpriv: what does a semi-honest server learn from what federated-learning clients upload?

The public names are those of :data:`__all__`: the verbs, what they return, and the payloads that clients upload. They are
imported when they are first used, so that ``import fedpriv`` and ``fedpriv --help`` answer at once and load no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.experiment.study.run import StudyResult as StudyResult
    from fedpriv.experiment.verbs.attacking import attack as attack
    from fedpriv.experiment.verbs.auditing import audit as audit
    from fedpriv.experiment.verbs.counting import Traffic as Traffic
    from fedpriv.experiment.verbs.counting import cost as cost
    from fedpriv.experiment.verbs.dividing import Holdings as Holdings
    from fedpriv.experiment.verbs.dividing import data as data
    from fedpriv.experiment.verbs.reporting import Report as Report
    from fedpriv.experiment.verbs.reporting import report as report
    from fedpriv.experiment.verbs.result import AttackResult as AttackResult
    from fedpriv.experiment.verbs.scoring import score as score
    from fedpriv.experiment.verbs.training import Run as Run
    from fedpriv.experiment.verbs.training import train as train
    from fedpriv.util.errors import UserError as UserError
    from fedpriv.util.listener import Listener as Listener

__version__ = "0.1.0"

_VERBS = "fedpriv.experiment.verbs."
_PLACES = {
    "train": _VERBS + "training",
    "attack": _VERBS + "attacking",
    "score": _VERBS + "scoring",
    "report": _VERBS + "reporting",
    "audit": _VERBS + "auditing",
    "cost": _VERBS + "counting",
    "data": _VERBS + "dividing",
    "Run": _VERBS + "training",
    "AttackResult": _VERBS + "result",
    "Report": _VERBS + "reporting",
    "StudyResult": "fedpriv.experiment.study.run",
    "Traffic": _VERBS + "counting",
    "Holdings": _VERBS + "dividing",
    "UserError": "fedpriv.util.errors",
    "Listener": "fedpriv.util.listener",
}
"""Public name -> the module that has it."""

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
