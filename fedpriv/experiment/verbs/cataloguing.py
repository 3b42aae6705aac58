"""The verb ``catalogue``: which members of a kind there are: methods, attacks, defenses, data sets, and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.experiment.catalogued import shipped
from fedpriv.experiment.described import one_sentence
from fedpriv.experiment.saving import Tabular
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, unknown_name

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Needs
    from fedpriv.util.registry import Registry

Kind = Literal["methods", "attacks", "defenses", "datasets", "models", "payloads", "metrics", "targets", "claims"]


@dataclass(frozen=True)
class Catalogue(Tabular):
    """Members of one kind.

    Attributes:
        kind: which.
        members: name -> what is said of it, in words; each has the same entries.
    """

    kind: Kind
    members: Mapping[str, Mapping[str, str]]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a member."""
        return [{"name": name, **said} for name, said in self.members.items()]

    def bibtex(self) -> str:
        """Return the BibTeX entries of the papers behind methods, each once; those without one are named in comments.

        Raises:
            UserError: for members of another kind.
        """
        from fedpriv.methods.references import references

        if self.kind != "methods":
            raise UserError(f"{self.kind}: have no BibTeX entries; expected methods")
        known = references()
        entries = dict.fromkeys(known[name] for name in self.members if name in known)
        others = [f"% {name}: {said['source']}" for name, said in self.members.items() if name not in known]
        return "\n\n".join([*entries, *(["\n".join(["% no entry:", *others])] if others else [])])


def catalogue(kind: Kind, *, target: str | None = None) -> Catalogue:
    """List the members of one kind, those of installed packages too.

    >>> import fedpriv
    >>> sorted(fedpriv.catalogue("attacks", target="kernel").members)
    ['membership', 'property']

    Args:
        kind: ``methods``, ``attacks``, ``defenses``, ``datasets``, ``models``, ``payloads``, ``metrics``, ``targets`` or
            ``claims``.
        target: with ``attacks``: only those for this kind of upload.

    Raises:
        UserError: for another kind, or an unknown target.
    """
    if kind not in _LISTS:
        raise unknown_name("list", kind, _LISTS)
    if target is not None and kind != "attacks":
        raise UserError(f"{argument('target', target)}: only goes with attacks")
    rows = shipped(kind, target)
    if rows is None:
        rows = rows_of(kind, target)
    return Catalogue(kind, {row.pop("name"): row for row in rows})


def rows_of(kind: str, target: str | None = None) -> list[dict[str, str]]:
    """Return the rows of a kind, made from its members; they are imported for it.

    Raises:
        UserError: for an unknown target.
    """
    return _attacks(target) if kind == "attacks" else _LISTS[kind]()


def _methods() -> list[dict[str, str]]:
    from fedpriv.federation.method import Method
    from fedpriv.methods import METHODS

    found: dict[str, Method] = METHODS.load_all()
    return [
        {
            "name": name,
            "does": one_sentence("methods", METHODS, name),
            "uploads": ", ".join(method.uploads) or "nothing",
            "broadcasts": ", ".join(method.broadcasts) or "nothing",
            "models": "one architecture" if method.homogeneous else "any",
            "source": method.source,
            **_origin(METHODS, name),
        }
        for name, method in found.items()
    ]


def _origin(members: Registry, name: str) -> dict[str, str]:
    """Return the column that says whose a member is, where some are other packages'."""
    return {"from": members.origin(name) or "fedpriv"} if len(members) > len(members.builtins) else {}


def _attacks(target: str | None = None) -> list[dict[str, str]]:
    from fedpriv.attacks import ATTACKS
    from fedpriv.pipeline.plan import target_name

    target = target and target_name(target)
    found = {name: kind() for name, kind in ATTACKS.load_all().items() if not target or target in kind.targets}
    return [
        {
            "name": name,
            "gives": made.summary,
            **({} if target else {"targets": ", ".join(made.targets)}),
            "needs from the knowledge card": _needs(made.requirements_for(target), made.needs_in_words),
            "one target is": _UNITS[getattr(made, "unit", None)],
            "budget": f"{made.budget}={getattr(made, made.budget)}" if made.budget else "none",
            **_origin(ATTACKS, name),
        }
        for name, made in found.items()
    ]


_UNITS = {
    "upload": "an upload, or a row of it",
    "class": "a class of a client",
    "row": "a row of an upload, cleaned first",
    None: "a candidate image or a class, which gets a score",
}
"""One target of an attack in words, by its unit; attacks without one return no images."""


def _needs(needs: Needs, otherwise: str) -> str:
    wanted = {
        "extractor": " or ".join(needs.extractor),
        "labels": " or ".join(needs.labels),
        "batch": "known" if needs.batch else "",
        "attacker_data": " or ".join(needs.attacker_data),
    }
    told = [f"{grant}={value}" for grant, value in wanted.items() if value]
    told += [f"at least {needs.min_rounds} rounds"] if needs.min_rounds > 1 else []
    return ", ".join(told) or otherwise


def _defenses() -> list[dict[str, str]]:
    from fedpriv.defenses import DEFENSES
    from fedpriv.federation.answer import answer_sentence
    from fedpriv.federation.defense import Defense

    found: dict[str, type[Defense]] = DEFENSES.load_all()
    return [
        {
            "name": name,
            "does": one_sentence("defenses", DEFENSES, name),
            "guarantee": made.guarantee,
            "adaptive answer": answer_sentence(made.answers, made.unanswered),
            "source": made.source,
            **_origin(DEFENSES, name),
        }
        for name, made in found.items()
    ]


def _datasets() -> list[dict[str, str]]:
    from fedpriv.datasets import DATASETS

    notes = {
        "fashion": "embedded, 2,000 images of 28x28 (a part of Fashion-MNIST); the default",
        "digits": "embedded, 1,797 images of 8x8",
        "plane": "drawn from the run's seed",
        "tiny-imagenet": f"{argument('data_dir')} with tiny-imagenet-200/ in its original layout",
        "folder": f"{argument('data_dir')} with train/ and test/ (or val/), or one folder a class",
    }
    return [
        {
            "name": name,
            "holds": one_sentence("datasets", DATASETS, name),
            "where": notes.get(name, f"{argument('data_dir')}, or {argument('download')}")
            if name in DATASETS.builtins
            else "its own",
        }
        | _origin(DATASETS, name)
        for name in DATASETS.load_all()
    ]


def _models() -> list[dict[str, str]]:
    from fedpriv.models import FAMILIES, MODELS

    rows = [{"name": name, "kind": "family", "is": ", ".join(members)} for name, members in FAMILIES.items()]
    rows += [{"name": name, "kind": "model", "is": one_sentence("models", MODELS, name)} for name in MODELS.load_all()]
    return [row | _origin(MODELS, row["name"]) for row in rows]


def _payloads() -> list[dict[str, str]]:
    from dataclasses import fields

    from fedpriv.wire.payload import Payload
    from fedpriv.wire.payloads import PAYLOADS

    found: dict[str, type[Payload]] = PAYLOADS.load_all()
    return [
        {
            "name": name,
            "is": one_sentence("payloads", PAYLOADS, name),
            "computed from": kind.computed_from,
            "space": kind.space if kind.network is None else f"{kind.space} ({kind.network})",
            "says": ", ".join(spec.metadata["says"] for spec in fields(kind) if spec.metadata["says"]) or "nothing",
            "added up": kind.aggregation,
            "sent": "once" if kind.once else "every round",
            **_origin(PAYLOADS, name),
        }
        for name, kind in found.items()
    ]


def _metrics() -> list[dict[str, str]]:
    from fedpriv.scoring.leakage import METRICS, Metric

    found: dict[str, Metric] = METRICS.load_all()
    return [
        {
            "name": name,
            "of": metric.of,
            "unit": metric.unit or "none",
            "more leakage is": "higher" if metric.higher_is_better else "lower",
            "measures": metric.description,
            **_origin(METRICS, name),
        }
        for name, metric in found.items()
    ]


def _targets() -> list[dict[str, str]]:
    from fedpriv.attacks import attacks_for, target_names, told_in_clear
    from fedpriv.methods import default_method

    return [
        {
            "name": name,
            "attacks": ", ".join(attacks_for(name)) or f"none: {told_in_clear(name)}",
            "method trained where there is no run": default_method(name) or "none",
        }
        for name in target_names()
    ]


def _claims() -> list[dict[str, str]]:
    from fedpriv.claims import claims

    return [
        {
            "name": name,
            "about": claim.quantity,
            "title": claim.title,
            "paper": claim.paper,
            "where": claim.where,
            "values": str(sum(value is not None for row in claim.rows for value in row.values)),
            "needs": "nothing" if claim.counted else ", ".join(dict.fromkeys(column.data for column in claim.columns)),
        }
        for name, claim in claims().items()
    ]


_LISTS = {
    "methods": _methods,
    "attacks": _attacks,
    "defenses": _defenses,
    "datasets": _datasets,
    "models": _models,
    "payloads": _payloads,
    "metrics": _metrics,
    "targets": _targets,
    "claims": _claims,
}

KINDS = tuple(_LISTS)
"""All that can be listed."""
