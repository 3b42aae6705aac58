"""The verb ``explain``: what one member is, in full."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fedpriv.experiment.described import in_full
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.verbs.cataloguing import Kind, catalogue
from fedpriv.util.arguments import argument, call
from fedpriv.util.errors import UserError, shown
from fedpriv.util.registry import is_reference

if TYPE_CHECKING:
    from fedpriv.util.registry import Registry

_TABLES: Mapping[Kind, str] = {
    "methods": "fedpriv.methods:METHODS",
    "attacks": "fedpriv.attacks:ATTACKS",
    "defenses": "fedpriv.defenses:DEFENSES",
    "payloads": "fedpriv.wire.payloads:PAYLOADS",
    "metrics": "fedpriv.scoring.leakage:METRICS",
    "datasets": "fedpriv.datasets:DATASETS",
    "models": "fedpriv.models:MODELS",
}
"""Kind -> registry of its members. A reference is of the first kind whose contract it keeps."""

_NOUNS: Mapping[Kind, str] = {
    "methods": "method",
    "attacks": "attack",
    "defenses": "defense",
    "payloads": "kind of payload",
    "metrics": "metric",
    "datasets": "data set",
    "models": "model",
    "claims": "claim",
}


@dataclass(frozen=True)
class Explanation:
    """All that is said of one member. As text it is Markdown; a notebook shows it by itself.

    Attributes:
        name: the member.
        kind: ``methods``, ``attacks``, ... as of :func:`fedpriv.catalogue`.
        facts: its row there.
        text: its docstring as Markdown: formulas and source; options of a method or a defense.
        page: the page of the documentation about it, of attacks; empty for others.
        bibtex: the entry of its paper, of methods; empty for others.
    """

    name: str
    kind: Kind
    facts: Mapping[str, str]
    text: str = ""
    page: str = ""
    bibtex: str = ""

    def __str__(self) -> str:
        said = ("does", "holds", "is") if self.text else ()  # the text begins with it
        facts = "\n".join(f"- {name}: {told}" for name, told in self.facts.items() if told and name not in said)
        parts = [f"# {self.name} ({_NOUNS[self.kind]})", facts, self.text, self.page]
        parts += [f"```bibtex\n{self.bibtex}\n```"] if self.bibtex else []
        return "\n\n".join(part.strip() for part in parts if part)

    def _repr_markdown_(self) -> str:
        return str(self)


@imports_what_is_named
def explain(name: str) -> Explanation:
    """Say all there is to say of a method, attack, defense, kind of payload, metric, data set, model or claim.

    >>> import fedpriv
    >>> fedpriv.explain("fedgh").facts["does"]
    'FedGH: upload class prototypes; the server trains a global head on them.'

    Args:
        name: of a member, or ``package.module:NAME``.

    Raises:
        UserError: for a name that no member has.
    """
    from fedpriv.attacks import target_names

    kind = _kind_of(name)
    if kind in _TABLES:
        members = _members(kind)
        name = members.own_name(name) if kind != "datasets" and name in members else name
    facts = dict(catalogue(kind).members.get(name, {}))
    if kind == "payloads" and name in target_names():
        facts |= catalogue("targets").members[name]
    if kind == "claims":
        return Explanation(name, kind, facts, _claim(name))
    text = "" if kind == "metrics" or name not in _members(kind) else in_full(kind, _members(kind), name)
    return Explanation(name, kind, facts, text, _page(kind, name), _bibtex(kind, name))


def _kind_of(name: str) -> Kind:
    from fedpriv.claims import claims
    from fedpriv.models import FAMILIES

    if not isinstance(name, str):
        raise UserError(f"{argument('name', name)}: expected a name")
    reference = is_reference(name)
    for kind in _TABLES:
        members = _members(kind)
        if name in members and (not reference or _keeps_contract(members, name)):
            return kind
    if name in FAMILIES:
        return "models"
    if name in claims():
        return "claims"
    known = [*(own for kind in _TABLES for own in _members(kind)), *FAMILIES, *claims()]
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise UserError(f"nothing is called {shown(name)}{hint} {call('catalogue', 'KIND')} lists what there is")


def _keeps_contract(members: Registry, name: str) -> bool:
    try:
        members.load(name)
    except UserError:
        return False
    return True


def _members(kind: Kind) -> Registry:
    module, _, attribute = _TABLES[kind].partition(":")
    found: Registry = getattr(importlib.import_module(module), attribute)
    return found


def _claim(name: str) -> str:
    from fedpriv.claims import claims

    claim = claims()[name]
    parts = [f"`fedpriv reproduce {name}` puts it to the test."]
    for title, lines in (("Known", claim.known), ("Not said", claim.unknown)):
        parts += ["\n".join([f"## {title}\n", *(f"- {line}" for line in lines)])] if lines else []
    return "\n\n".join(parts)


def _page(kind: Kind, name: str) -> str:
    from fedpriv.pages.attack_pages import attack_pages

    return attack_pages().get(name, "") if kind == "attacks" else ""


def _bibtex(kind: Kind, name: str) -> str:
    from fedpriv.methods.references import references

    return references().get(name, "") if kind == "methods" else ""
