"""fedpriv: what does a semi-honest server learn from what federated-learning clients upload?

The public names are those of :data:`__all__`: the verbs, what they return, and the payloads that clients upload. They are
imported when they are first used, so that ``import fedpriv`` and ``fedpriv --help`` answer at once and load no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.attacks.observation import BatchFacts as BatchFacts
    from fedpriv.attacks.observation import ThreatModel as ThreatModel
    from fedpriv.experiment.study.run import StudyResult as StudyResult
    from fedpriv.experiment.verbs.attacking import attack as attack
    from fedpriv.experiment.verbs.auditing import StudyPlan as StudyPlan
    from fedpriv.experiment.verbs.auditing import audit as audit
    from fedpriv.experiment.verbs.auditing import plan as plan
    from fedpriv.experiment.verbs.cataloguing import Catalogue as Catalogue
    from fedpriv.experiment.verbs.cataloguing import catalogue as catalogue
    from fedpriv.experiment.verbs.comparing import Changes as Changes
    from fedpriv.experiment.verbs.comparing import compare as compare
    from fedpriv.experiment.verbs.counting import Traffic as Traffic
    from fedpriv.experiment.verbs.counting import cost as cost
    from fedpriv.experiment.verbs.diagnosing import Diagnosis as Diagnosis
    from fedpriv.experiment.verbs.diagnosing import doctor as doctor
    from fedpriv.experiment.verbs.explaining import Explanation as Explanation
    from fedpriv.experiment.verbs.explaining import explain as explain
    from fedpriv.experiment.verbs.privacy_auditing import PrivacyAudit as PrivacyAudit
    from fedpriv.experiment.verbs.privacy_auditing import audit_dp as audit_dp
    from fedpriv.experiment.verbs.reporting import Report as Report
    from fedpriv.experiment.verbs.reporting import report as report
    from fedpriv.experiment.verbs.reproducing import Reproduction as Reproduction
    from fedpriv.experiment.verbs.reproducing import reproduce as reproduce
    from fedpriv.experiment.verbs.result import AttackResult as AttackResult
    from fedpriv.experiment.verbs.scoring import score as score
    from fedpriv.experiment.verbs.submitting import Submission as Submission
    from fedpriv.experiment.verbs.submitting import submit as submit
    from fedpriv.experiment.verbs.training import Run as Run
    from fedpriv.experiment.verbs.training import train as train
    from fedpriv.experiment.verbs.uploading import attack_uploads as attack_uploads
    from fedpriv.sources.messages import Gradient as Gradient
    from fedpriv.sources.messages import Update as Update
    from fedpriv.util.errors import UserError as UserError
    from fedpriv.util.parallel import Listener as Listener
    from fedpriv.wire.payload import Payload as Payload
    from fedpriv.wire.payloads import AngleMatrix as AngleMatrix
    from fedpriv.wire.payloads import Classifier as Classifier
    from fedpriv.wire.payloads import ClassLogits as ClassLogits
    from fedpriv.wire.payloads import Entangled as Entangled
    from fedpriv.wire.payloads import Extractor as Extractor
    from fedpriv.wire.payloads import Kernel as Kernel
    from fedpriv.wire.payloads import LabelCounts as LabelCounts
    from fedpriv.wire.payloads import LowRankModel as LowRankModel
    from fedpriv.wire.payloads import Model as Model
    from fedpriv.wire.payloads import Prototypes as Prototypes
    from fedpriv.wire.payloads import Representations as Representations
    from fedpriv.wire.payloads import SampleCount as SampleCount
    from fedpriv.wire.payloads import SmallModel as SmallModel

__version__ = "0.2.0"

_VERBS = "fedpriv.experiment.verbs."
_PLACES = {
    "train": _VERBS + "training",
    "attack": _VERBS + "attacking",
    "attack_uploads": _VERBS + "uploading",
    "score": _VERBS + "scoring",
    "report": _VERBS + "reporting",
    "audit": _VERBS + "auditing",
    "audit_dp": _VERBS + "privacy_auditing",
    "submit": _VERBS + "submitting",
    "plan": _VERBS + "auditing",
    "catalogue": _VERBS + "cataloguing",
    "compare": _VERBS + "comparing",
    "explain": _VERBS + "explaining",
    "cost": _VERBS + "counting",
    "reproduce": _VERBS + "reproducing",
    "doctor": _VERBS + "diagnosing",
    "Run": _VERBS + "training",
    "AttackResult": _VERBS + "result",
    "PrivacyAudit": _VERBS + "privacy_auditing",
    "Report": _VERBS + "reporting",
    "StudyResult": "fedpriv.experiment.study.run",
    "StudyPlan": _VERBS + "auditing",
    "Catalogue": _VERBS + "cataloguing",
    "Traffic": _VERBS + "counting",
    "Reproduction": _VERBS + "reproducing",
    "Submission": _VERBS + "submitting",
    "Changes": _VERBS + "comparing",
    "Diagnosis": _VERBS + "diagnosing",
    "Explanation": _VERBS + "explaining",
    "Update": "fedpriv.sources.messages",
    "Gradient": "fedpriv.sources.messages",
    "BatchFacts": "fedpriv.attacks.observation",
    "ThreatModel": "fedpriv.attacks.observation",
    "Payload": "fedpriv.wire.payload",
    **dict.fromkeys(
        (
            *("Representations", "Prototypes", "Entangled", "AngleMatrix", "ClassLogits", "Kernel", "LabelCounts"),
            *("SampleCount", "Classifier", "Extractor", "Model", "SmallModel", "LowRankModel"),
        ),
        "fedpriv.wire.payloads",
    ),
    "UserError": "fedpriv.util.errors",
    "Listener": "fedpriv.util.parallel",
}
"""Public name -> the module that has it."""

__all__ = list(_PLACES)

_ADAPTERS = ("flower", "nvflare")
"""Modules of other frameworks' apps, imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    result = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = result
    return result


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ADAPTERS})
