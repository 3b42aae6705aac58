"""The verb ``catalogue``: which members of a kind there are: methods, attacks, defenses, data sets, and so on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.attacks import refuse_unknown_target
from fedpriv.experiment.saving import Tabular
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import summary

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Needs
    from fedpriv.util.registry import Registry

Kind = Literal["methods", "attacks", "defenses", "datasets", "models", "payloads", "targets", "claims"]
Row = dict[str, str]

REGISTRIES: Mapping[str, str] = {
    "methods": "fedpriv.methods:METHODS",
    "attacks": "fedpriv.attacks:ATTACKS",
    "defenses": "fedpriv.defenses:DEFENSES",
    "payloads": "fedpriv.wire:PAYLOADS",
    "datasets": "fedpriv.datasets:DATASETS",
    "models": "fedpriv.models:MODELS",
}
"""Kind -> registry of its members. A reference is of the first kind whose contract it keeps."""


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
        """Return the BibTeX entries of the papers behind methods, each once; those without one are named in comments."""
        from fedpriv.methods import references

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
        kind: ``methods``, ``attacks``, ``defenses``, ``datasets``, ``models``, ``payloads``, ``targets`` or ``claims``.
        target: with ``attacks``: only those for this kind of upload.

    Raises:
        UserError: for another kind, or an unknown target.
    """
    if kind not in _ROWS:
        raise unknown_name("list", kind, _ROWS)
    if target is not None and kind != "attacks":
        raise UserError(f"target={shown(target)}: only goes with attacks")
    if target is not None:
        refuse_unknown_target(target)
    if kind == "attacks":
        result = _attacks(target)
    elif kind in REGISTRIES:
        members = registry(kind)
        result = [{"name": name, **_ROWS[kind](name, made)} for name, made in members.load_all().items()]
    else:
        result = _ROWS[kind]()
    if kind == "models":
        from fedpriv.models import FAMILIES

        result = [
            {"name": name, "kind": "family", "is": ", ".join(current)} for name, current in FAMILIES.items()
        ] + result
    if kind in REGISTRIES and len(registry(kind)) > len(registry(kind).builtins):
        result = [row | {"from": registry(kind).origin(row["name"]) or "fedpriv"} for row in result]
    return Catalogue(kind, {row.pop("name"): row for row in result})


def registry(kind: str) -> Registry:
    """Return the registry of a kind."""
    module, _, attribute = REGISTRIES[kind].partition(":")
    result: Registry = getattr(importlib.import_module(module), attribute)
    return result


def docstring(kind: str, name: str) -> str:
    """Return the docstring in which a member describes itself; empty where there is none but Python's own."""
    if kind == "methods":  # a method is a constant: its file speaks for it
        return inspect.cleandoc(importlib.import_module(registry(kind)[name].partition(":")[0]).__doc__ or "")
    result = registry(kind).load(name)
    result = getattr(result, "func", result)  # of a partial function, the whole one's
    details = inspect.getdoc(result) or ""
    return "" if details.startswith(f"{getattr(result, '__name__', '')}(") else details


def _sentence(kind: str, name: str) -> str:
    details = summary(docstring(kind, name))
    return details.removeprefix("Load ").removeprefix("Draw ") if kind == "datasets" else details


def _method(name: str, method: Any) -> Row:
    return {
        "does": method.about or _sentence("methods", name),
        "uploads": ", ".join(method.uploads) or "nothing",
        "broadcasts": ", ".join(method.broadcasts) or "nothing",
        "models": "one architecture" if method.homogeneous else "any",
        "source": method.source,
    }


def _attacks(target: str | None) -> list[Row]:
    from fedpriv.attacks import ATTACKS
    from fedpriv.pipeline.plan import target_name

    target = target and target_name(target)
    results = {name: kind() for name, kind in ATTACKS.load_all().items() if not target or target in kind.targets}
    return [
        {
            "name": name,
            "gives": made.summary,
            **({} if target else {"targets": ", ".join(made.targets)}),
            "needs from the threat model": _needs(made.requirements_for(target), made.needs_in_words),
            "one target is": _UNITS[getattr(made, "unit", None)],
            "budget": f"{made.budget}={getattr(made, made.budget)}" if made.budget else "none",
        }
        for name, made in results.items()
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
    lines = [f"{grant}={value}" for grant, value in wanted.items() if value]
    lines += [f"at least {needs.min_rounds} rounds"] if needs.min_rounds > 1 else []
    return ", ".join(lines) or otherwise


def _defense(name: str, made: Any) -> Row:
    from fedpriv.federation.answer import answer_sentence

    return {
        "does": _sentence("defenses", name),
        "guarantee": made.guarantee,
        "adaptive answer": answer_sentence(made.answers, made.unanswered),
        "source": made.source,
    }


def _dataset(name: str, _: Any) -> Row:
    notes = {
        "fashion": "embedded, 2,000 images of 28x28 (a part of Fashion-MNIST); the default",
        "digits": "embedded, 1,797 images of 8x8",
        "plane": "drawn from the run's seed",
        "tiny-imagenet": "data_dir with tiny-imagenet-200/ in its original layout",
        "folder": "data_dir with train/ and test/ (or val/), or one folder a class",
    }
    shipped = name in registry("datasets").builtins
    where = notes.get(name, "data_dir, or download") if shipped else "its own"
    return {"holds": _sentence("datasets", name), "where": where}


def _payload(name: str, kind: Any) -> Row:
    return {
        "is": _sentence("payloads", name),
        "computed from": kind.computed_from,
        "space": kind.space if kind.network is None else f"{kind.space} ({kind.network})",
        "says": ", ".join(spec.metadata["says"] for spec in fields(kind) if spec.metadata["says"]) or "nothing",
        "added up": kind.aggregation,
        "sent": "once" if kind.once else "every round",
    }


def _targets() -> list[Row]:
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


def _claims() -> list[Row]:
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


_ROWS: dict[str, Callable[..., Any]] = {
    "methods": _method,
    "attacks": _attacks,
    "defenses": _defense,
    "datasets": _dataset,
    "models": lambda name, _: {"kind": "model", "is": _sentence("models", name)},
    "payloads": _payload,
    "targets": _targets,
    "claims": _claims,
}
