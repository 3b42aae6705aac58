"""Secure aggregation: the server sees a sum of uploads alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedpriv.defenses.signals import LAYER_NAMES, NETWORK_NAMES
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, ProtectionPlan
from fedpriv.util.errors import UserError

_ONE_OF = "as it is: the mean tells that one of its clients trained on an image, not which one"


@dataclass(frozen=True)
class SecureAggregation(Defense):
    """Uploads are masked so that the server learns their weighted mean over a round's clients and nothing else.

    A switch of the threat model, not an implementation of the protocol: clients compute what they always do, and an
    attacker on the run is handed the mean of each round in place of its parts. Messages for the masks (keys, shares)
    are not in the ledger. No guarantee about the mean itself: it can be taken apart over rounds of different clients.
    """

    name: ClassVar[str] = "secure-aggregation"
    source: ClassVar[str] = "Bonawitz et al., CCS 2017"
    encodes: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "the server sees weighted means over a round's clients only; nothing about what those tell"
    )
    answers = (
        Answer(("pooled",), ("model", "small-model"), note="one step of all clients is one of a larger batch"),
        Answer(("membership",), (*NETWORK_NAMES, *LAYER_NAMES), note=_ONE_OF),
        Answer(note="they see every client alike, so that nothing tells one from another"),
    )
    server_view: ClassVar[Literal["each", "sum"]] = "sum"

    def check(self, plan: ProtectionPlan) -> None:
        if not plan.linear_aggregation or not plan.uploads:
            raise UserError(
                f"defense 'secure-aggregation': the server of method {plan.method!r} needs single uploads, not their mean; "
                "methods that average do with sums, for example fedavg, fedrep, lg-fedavg, fedral"
            )
        if plan.encoded:
            raise UserError(
                f"defense 'secure-aggregation' behind {plan.encoded[-1]!r}: a masked upload is as long as the whole signal, "
                "so nothing is saved on the wire; drop one of the two"
            )
        if plan.n_clients < 2:
            raise UserError("defense 'secure-aggregation' hides an upload among others; it needs at least two clients")
