"""The verb ``cost``: communication of a round, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.datasets.partition import class_counts
from fedpriv.federation.cost import communication, with_models
from fedpriv.federation.method import Method
from fedpriv.federation.prepared import load_division
from fedpriv.methods import METHODS
from fedpriv.models import default_width, family
from fedpriv.study.saving import Tabular
from fedpriv.study.settings import (
    DIVISION_SETTINGS,
    FLAG_NAMES,
    FederationSettings,
    named_config,
    refuse_small,
    refuse_unknown,
)
from fedpriv.uploads.ledger import FederationSizes
from fedpriv.util.config import mapping, texts
from fedpriv.util.errors import UserError

_DATA = (*DIVISION_SETTINGS, "data_dir", "dataset", "download", "partition", "per_class", "seed")
"""Whoever sets one of these wants sizes from data, which gives the following."""
_STATED = ("classes", "pairs", "samples", "channels")


class CostSettings(FederationSettings, total=False):
    """The sizes that a count needs, stated or, where ``classes`` is not given, taken from data."""

    classes: int  # number of classes C
    pairs: int  # (client, class) pairs in the training splits together, P
    samples: int  # training images of all clients together
    channels: int  # of images where no data is read (default 3)
    model_scalars: int  # parameters of one client's model, instead of ``models``
    clusters: int  # cluster prototypes over all classes, Q (fpl)
    compressed_scalars: int  # scalars of one compressed model (fedkd)
    seed: int  # of the partition
    download: bool  # fetch the data set if it is missing


@dataclass(frozen=True)
class Traffic(Tabular):
    """Uploads and broadcasts of methods in a settled round, all clients together.

    Attributes:
        sizes: what was counted with: clients, classes, width, and so on.
        methods: one mapping a method: ``method``, and ``communication`` (``paper`` and ``full`` counts of scalars and
            bytes in both directions); or ``missing``: the size that is not known.
    """

    sizes: Mapping[str, Any]
    methods: tuple[Mapping[str, Any], ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the counts, one row a method and way of counting."""
        return [
            {"method": row["method"], "count": kind, **counts}
            for row in self.methods
            for kind, counts in row.get("communication", {}).items()
        ]


@imports_what_is_named
def cost(methods: str | Sequence[str] = "fedre", **sizes: Unpack[CostSettings]) -> Traffic:
    """Count what methods upload and broadcast in a round, without training.

    Sizes are stated (``classes``, ``width``, ``pairs``, ...), or taken from data (``dataset``, ``partition``, ...). Without
    data, images are 3 x 32 x 32 unless ``channels`` and ``image_size`` say otherwise. ``clients`` are those that take part.

    >>> import fedpriv
    >>> found = fedpriv.cost("fedre", clients=10, classes=10, width=512)
    >>> found.methods[0]["communication"]["paper"]["upload_scalars_per_round"]
    5120

    Args:
        methods: names of ``fedpriv list methods``, several with commas between, or ``all``.
        sizes: see :class:`CostSettings`.
    """
    refuse_unknown(sizes, CostSettings)
    refuse_small(sizes, (*_STATED, "width", "model_scalars", "clusters", "compressed_scalars"))
    listed = texts("methods", methods)
    names = [part for name in listed for part in (METHODS if name == "all" else name.split(","))]
    chosen: list[Method] = [METHODS.load(name) for name in names]
    option = mapping("option", sizes.get("option", ()))
    if option and len(names) > 1:
        raise UserError("option belongs to one method; ask for one methods with it")
    facts, where, mixed = _sizes(sizes)
    rows: list[Mapping[str, Any]] = []
    for method in chosen:
        try:
            counts = communication(method, facts, option, mixed=mixed)
            rows.append({"method": method.name, "communication": counts})
        except UserError as error:
            rows.append({"method": method.name, "missing": str(error)})
    if all("missing" in row for row in rows):
        reason = rows[0]["missing"]
        raise UserError(reason if len(rows) == 1 else f"no method can be counted; {names[0]}: {reason}")
    return Traffic(where, tuple(rows))


def _sizes(given: Mapping[str, Any]) -> tuple[FederationSizes, dict[str, Any], bool]:
    """Return the sizes, the same for people and machines, and whether architectures differ."""
    given = {name: value for name, value in given.items() if value is not None}
    where: dict[str, Any] = {}
    models: str | None = given.get("models")
    reads = [name for name in _DATA if name in given]
    if "classes" not in given or reads:
        stated = ", ".join(name for name in _STATED if name in given)
        if stated:
            why = f"{reads[0]} reads data" if reads else "classes is missing"
            raise UserError(f"{stated}: {why}, and data gives these sizes; drop {stated}")
        known = {name: value for name, value in given.items() if name in FLAG_NAMES and name != "option"}
        config = named_config("local", {**known, "models": models or "small"}, given.get("seed", 0))
        federated, image_shape = load_division(config, download=given.get("download", False))
        models, counts = config.models, class_counts(federated)
        sizes: dict[str, Any] = {
            "classes": federated.dataset.n_classes,
            "pairs": int((counts > 0).sum()),
            "samples": int(counts.sum()),
            "known_classes": int(counts.any(0).sum()),
        }
        where = {"dataset": config.dataset, "partition": config.partition.name, "seed": config.seed}
    else:
        checked = ("clients", "image_size", *(("width",) if models is not None else ()))
        config = named_config("local", {name: given[name] for name in checked if name in given}, 0)
        image_shape = (given.get("channels", 3), config.image_size or 32, config.image_size or 32)
        sizes = {name: given[name] for name in _STATED[:3] if name in given}
    if "width" not in given and models is None:
        raise UserError("the representation width is not known: pass width or models")
    if "model_scalars" in given and "models" in given:
        raise UserError("model_scalars and models exclude each other: the model says how many there are")
    facts = FederationSizes(
        clients=given.get("clients", 10),
        width=given["width"] if "width" in given else default_width(str(models), image_shape),
        clusters=given.get("clusters"),
        compressed_scalars=given.get("compressed_scalars"),
        public=given.get("public") or None,
        **sizes,
    )
    if models is not None:
        facts = with_models(facts, models, image_shape, given.get("mapping", "ap"))
    if "model_scalars" in given:
        facts, models = replace(facts, model_scalars=given["model_scalars"], all_model_scalars=None), None
    mixed = models is not None and len(set(family(models)[: facts.clients])) > 1
    beside = "model_scalars" if mixed else "all_model_scalars"
    where |= {k: v for k, v in vars(facts).items() if isinstance(v, int) and k != beside}
    return facts, where, mixed
