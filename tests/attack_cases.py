"""Every registered attack in a table: what it is tried on."""

from dataclasses import dataclass, field
from typing import Any

from fedpriv.defenses import parse_choice
from fedpriv.federation.method import LocalTraining


@dataclass(frozen=True)
class Case:
    """On what an attack is tried."""

    method: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    n_targets: int = 2


SUMMED: dict[str, Any] = {"defenses": (parse_choice("secure-aggregation"),)}
TWO_IMAGES = LocalTraining(learning_rate=0.1, batch_size=2, max_steps=1)

CASES = {
    "dip": Case("fedproto", "prototype"),
    "pixels": Case("fedproto", "prototype"),
    "joint": Case("fedproto", "prototype", {"most": 2}),
    "decoder": Case("fedproto", "prototype", {"width": 16}, {"attacker_data": "same_domain"}),
    "learned": Case("fedproto", "prototype", card={"attacker_data": "same_domain"}),
    "unmix": Case("fedre", "entangled", card={"rounds_seen": 2}),
    "all-rounds": Case("fedproto", "prototype", card={"rounds_seen": 2}, config={"keep": (1, 2)}),
    "linear-layer": Case("fedavg", "model"),
    "dlg": Case("fedavg", "model", {"redraws": 0}),
    "inverting-gradients": Case("fedavg", "model"),
    "gradient-dip": Case("fedavg", "model"),
    "untransform": Case(
        "fedavg",
        "model",
        {"policy": "7"},
        {"attacker_data": "same_domain"},
        {"defenses": (parse_choice("transform:policy=7"),)},
    ),
    "demix": Case("fedavg", "model", config={"defenses": (parse_choice("mixup"),), "training": TWO_IMAGES}),
    "pooled": Case("fedavg", "model", config=SUMMED, n_targets=3),
    "head-update": Case("lg-fedavg", "classifier"),
    "angle-update": Case("fedral", "angle-matrix"),
    "class-inversion": Case("fd", "logits"),
    "paired-logits": Case("fedmd", "public-logits", {"width": 16}, {"attacker_data": "same_domain"}),
    "membership": Case("fedproto", "prototype"),
    "property": Case(
        "fedproto",
        "prototype",
        {"shadow_clients": 2, "steps": 2},
        {"attacker_data": "same_domain", "extractor": "none"},
    ),
    "labels": Case("fedproto", "prototype"),
}
"""One line an attack; a new one has one here too."""
