"""fedpriv: what does a semi-honest server learn from what federated-learning clients upload?

The public names are those of :data:`__all__`: the verbs, what they return, and the payloads that clients upload. They are
imported when they are first used, so that ``import fedpriv`` and ``fedpriv --help`` answer at once and load no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.api.attacking import attack as attack
    from fedpriv.api.attacking import attack_uploads as attack_uploads
    from fedpriv.api.auditing import Reproduction as Reproduction
    from fedpriv.api.auditing import StudyPlan as StudyPlan
    from fedpriv.api.auditing import audit as audit
    from fedpriv.api.auditing import plan as plan
    from fedpriv.api.auditing import reproduce as reproduce
    from fedpriv.api.cataloguing import Catalogue as Catalogue
    from fedpriv.api.cataloguing import Diagnosis as Diagnosis
    from fedpriv.api.cataloguing import Explanation as Explanation
    from fedpriv.api.cataloguing import catalogue as catalogue
    from fedpriv.api.cataloguing import doctor as doctor
    from fedpriv.api.cataloguing import explain as explain
    from fedpriv.api.checking import check as check
    from fedpriv.api.federations import PrivacyAudit as PrivacyAudit
    from fedpriv.api.federations import Run as Run
    from fedpriv.api.federations import Traffic as Traffic
    from fedpriv.api.federations import audit_dp as audit_dp
    from fedpriv.api.federations import cost as cost
    from fedpriv.api.federations import train as train
    from fedpriv.api.guarding import GuardResult as GuardResult
    from fedpriv.api.guarding import guard as guard
    from fedpriv.api.loading import Images as Images
    from fedpriv.api.loading import load as load
    from fedpriv.api.results import AttackResult as AttackResult
    from fedpriv.api.results import Changes as Changes
    from fedpriv.api.results import Report as Report
    from fedpriv.api.results import compare as compare
    from fedpriv.api.results import report as report
    from fedpriv.api.results import score as score
    from fedpriv.attacks.observation import BatchFacts as BatchFacts
    from fedpriv.attacks.observation import ThreatModel as ThreatModel
    from fedpriv.eval.gate import Check as Check
    from fedpriv.sources.messages import Gradient as Gradient
    from fedpriv.sources.messages import Update as Update
    from fedpriv.study.run import StudyResult as StudyResult
    from fedpriv.uploads.payload import Payload as Payload
    from fedpriv.uploads.payloads import AngleMatrix as AngleMatrix
    from fedpriv.uploads.payloads import Classifier as Classifier
    from fedpriv.uploads.payloads import ClassLogits as ClassLogits
    from fedpriv.uploads.payloads import Entangled as Entangled
    from fedpriv.uploads.payloads import Extractor as Extractor
    from fedpriv.uploads.payloads import Kernel as Kernel
    from fedpriv.uploads.payloads import LabelCounts as LabelCounts
    from fedpriv.uploads.payloads import LowRankModel as LowRankModel
    from fedpriv.uploads.payloads import Model as Model
    from fedpriv.uploads.payloads import Prototypes as Prototypes
    from fedpriv.uploads.payloads import Representations as Representations
    from fedpriv.uploads.payloads import SampleCount as SampleCount
    from fedpriv.uploads.payloads import SmallModel as SmallModel
    from fedpriv.util.errors import UserError as UserError
    from fedpriv.util.parallel import Listener as Listener

__version__ = "0.2.0"

_NAMES = {
    "api.federations": "train Run cost Traffic audit_dp PrivacyAudit",
    "api.attacking": "attack attack_uploads",
    "api.results": "AttackResult score report compare Report Changes",
    "api.checking": "check",
    "api.guarding": "guard GuardResult",
    "api.loading": "load Images",
    "api.auditing": "audit plan StudyPlan reproduce Reproduction",
    "api.cataloguing": "catalogue explain doctor Catalogue Explanation Diagnosis",
    "study.run": "StudyResult",
    "eval.gate": "Check",
    "sources.messages": "Update Gradient",
    "attacks.observation": "BatchFacts ThreatModel",
    "uploads.payload": "Payload",
    "uploads.payloads": "Representations Prototypes Entangled AngleMatrix ClassLogits Kernel LabelCounts SampleCount "
    "Classifier Extractor Model SmallModel LowRankModel",
    "util.errors": "UserError",
    "util.parallel": "Listener",
}
_PLACES = {name: f"fedpriv.{module}" for module, names in _NAMES.items() for name in names.split()}
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
