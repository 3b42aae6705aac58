"""Hide the weights of a mixture, which travel as its label encoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from fedpriv.algebra.matrices import nearest_distribution
from fedpriv.defenses.noise import laplace
from fedpriv.defenses.shared.signals import SignalDefense
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES, payload_kind
from fedpriv.wire.ledger import Entry
from fedpriv.wire.payload import Message, Payload

_WEIGHTS = "the weights are found with the prototypes, from how they are drawn and which is the largest"
_ENTANGLED = ("entangled",)


@dataclass(frozen=True)
class HideLabels(SignalDefense):
    """Replace the label encoding of an entangled upload by less.

    - ``argmax``: the class of largest weight alone, as a one-hot vector. On the wire: one class id. No guarantee.
    - ``laplace``: the encoding plus Laplace noise of scale 2 / epsilon, then the nearest distribution (the Euclidean
      projection onto the simplex). Any two encodings are at most 2 apart in the L1 norm, so each release is
      epsilon-differentially private for the encoding: whatever the client's labels are. Releases add up over rounds.
      The entangled representation itself is not covered: it is made with the same weights.

    The server learns from the wrong mixture of labels, which costs accuracy.

    Attributes:
        how: ``argmax`` or ``laplace``.
        epsilon: of one upload, > 0; for ``laplace``.
    """

    how: Literal["argmax", "laplace"] = "argmax"
    epsilon: Annotated[float, Gt(0)] = 1.0

    name: ClassVar[str] = "hide-labels"
    source: ClassVar[str] = "derived here; Laplace mechanism: Dwork et al., TCC 2006"
    guarantee: ClassVar[str] = (
        "laplace: epsilon-DP of the label encoding per upload, L1, any encoding for any other; argmax: none"
    )
    answers = (
        Answer(("unmix",), _ENTANGLED, {"weights": "hidden"}, note=_WEIGHTS),
        Answer(("membership",), _ENTANGLED, {"classes": "any"}, note="believes no label encoding to rule a class out"),
        Answer(("property",), _ENTANGLED, {"encodings": "hidden"}, note="learns from the mixture alone"),
    )
    fits = MIXTURES
    behind = ("prune", "quantise", "diagonal")

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        if self.how == "laplace" and getattr(plan.options, "normalisation", "absolute") == "signed":
            raise UserError(
                "defense 'hide-labels' with how=laplace: weights of normalisation=signed have no bound, so that no noise "
                "hides them; use normalisation=absolute or softmax, or how=argmax"
            )

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        return replace(plan, false_labels=self.name)

    def upload(self, message: Message, context: UploadContext) -> Message:
        return tuple(self._without_weights(payload, context.rng) for payload in message)

    def _without_weights(self, payload: Payload, rng: torch.Generator) -> Payload:
        name, encoding = payload.field_that_says("weights"), payload.said("weights")
        return payload if encoding is None else replace(payload, **{str(name): self._hidden(encoding, rng)})

    def _hidden(self, encoding: Tensor, rng: torch.Generator) -> Tensor:
        if self.how == "argmax":
            return torch.zeros_like(encoding).index_fill_(0, encoding.argmax(), 1.0)
        noise = laplace(encoding.shape, rng).to(encoding) * (2 / self.epsilon)
        return nearest_distribution(encoding + noise)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        if self.how == "laplace":
            return entries
        return [replace(e, shape=(1,), dtype="int64", itemsize=8) if _is_encoding(e) else e for e in entries]

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any] | None:
        if self.how == "argmax":
            return None
        return {
            "epsilon": self.epsilon * plan.rounds,
            "delta": 0.0,
            "norm": "L1",
            "unit": "label encoding",
            "neighbours": "a client's label encodings replaced by any others",
            "given": "the entangled representations, which are made with the same weights and not covered",
            "sensitivity": "2",
            "releases": plan.rounds,
            "accountant": "sum over releases",
            "not_protected": ["the entangled representation"],
        }


def _is_encoding(entry: Entry) -> bool:
    kind, _, name = entry.name.partition(".")
    return name == payload_kind(kind).field_that_says("weights")
