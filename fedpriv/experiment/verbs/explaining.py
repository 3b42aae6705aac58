"""The verb ``explain``: what one member is, in full."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.verbs.cataloguing import REGISTRIES, catalogue, docstring, registry
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import docstring_markdown
from fedpriv.util.registry import is_reference


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
    kind: str
    facts: Mapping[str, str]
    text: str = ""
    page: str = ""
    bibtex: str = ""

    def __str__(self) -> str:
        said = ("does", "holds", "is") if self.text else ()  # the text begins with it
        facts = "\n".join(f"- {name}: {fact}" for name, fact in self.facts.items() if fact and name not in said)
        noun = {"datasets": "data set", "payloads": "kind of payload"}.get(self.kind, self.kind.removesuffix("s"))
        parts = [f"# {self.name} ({noun})", facts, self.text, self.page]
        parts += [f"```bibtex\n{self.bibtex}\n```"] if self.bibtex else []
        return "\n\n".join(part.strip() for part in parts if part)

    def _repr_markdown_(self) -> str:
        return str(self)


@imports_what_is_named
def explain(name: str) -> Explanation:
    """Say all there is to say of a method, attack, defense, kind of payload, data set, model or claim.

    >>> import fedpriv
    >>> fedpriv.explain("fedgh").facts["does"]
    'FedGH: upload class prototypes; the server trains a global head on them.'

    Args:
        name: of a member, or ``package.module:NAME``.

    Raises:
        UserError: for a name that no member has.
    """
    from fedpriv.attacks import target_names
    from fedpriv.methods import references
    from fedpriv.pages.page import attack_pages

    kind = _kind_of(name)
    if kind in REGISTRIES:
        members = registry(kind)
        name = members.own_name(name) if kind != "datasets" and name in members else name
    facts = dict(catalogue(kind).members.get(name, {}))  # type: ignore[arg-type]
    if kind == "payloads" and name in target_names():
        facts |= catalogue("targets").members[name]
    page = attack_pages().get(name, "") if kind == "attacks" else ""
    return Explanation(
        name, kind, facts, _text(kind, name), page, references().get(name, "") if kind == "methods" else ""
    )


def _kind_of(name: str) -> str:
    from fedpriv.claims import claims
    from fedpriv.models import FAMILIES

    if not isinstance(name, str):
        raise UserError(f"name={shown(name)}: expected a name")
    for kind in REGISTRIES:
        if name in registry(kind) and (not is_reference(name) or _keeps_contract(kind, name)):
            return kind
    if name in FAMILIES:
        return "models"
    if name in claims():
        return "claims"
    known = [*(current for kind in REGISTRIES for current in registry(kind)), *FAMILIES, *claims()]
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise UserError(f"nothing is called {shown(name)}{hint} fedpriv list KIND lists what there is")


def _keeps_contract(kind: str, name: str) -> bool:
    try:
        registry(kind).load(name)
    except UserError:
        return False
    return True


def _text(kind: str, name: str) -> str:
    """Return a member's docstring as Markdown, with its options; of a claim, what is known of it."""
    if kind == "claims":
        from fedpriv.claims import claims

        claim = claims()[name]
        lines = [*(f"- known: {line}" for line in claim.known), *(f"- not said: {line}" for line in claim.unknown)]
        return "\n\n".join([f"`fedpriv reproduce {name}` puts it to the test.", "\n".join(lines)])
    if name not in registry(kind):
        return ""
    options = getattr(registry(kind).load(name), "options", None) if kind == "methods" else None
    details = inspect.getdoc(options) or "" if is_dataclass(options) else ""
    current = "" if details.startswith(f"{getattr(options, '__name__', '')}(") else details
    return "\n\n".join(
        [
            docstring_markdown(docstring(kind, name)),
            *([f"## Options\n\n{docstring_markdown(current)}"] if current else []),
        ]
    )
