"""The verbs ``catalogue`` and ``explain``: which members of a kind there are, and what one member or word is."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.attacks import attacks_for, refuse_unknown_target, target_names, told_in_clear
from fedpriv.claims import claims
from fedpriv.federation.answer import answer_sentence
from fedpriv.methods import default_method, references
from fedpriv.models import FAMILIES
from fedpriv.pipeline.plan import target_name
from fedpriv.study.saving import Tabular
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import docstring_markdown, summary
from fedpriv.util.glossary import find_word, words
from fedpriv.util.registry import Registry

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Needs

Kind = Literal["methods", "attacks", "defenses", "datasets", "models", "payloads", "targets", "claims"]
Row = dict[str, str]

REGISTRIES: Mapping[str, str] = {
    "methods": "fedpriv.methods:METHODS",
    "attacks": "fedpriv.attacks:ATTACKS",
    "defenses": "fedpriv.defenses:DEFENSES",
    "payloads": "fedpriv.uploads:PAYLOADS",
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


def catalogue(kind: Kind, *, target: str | None = None) -> Catalogue:
    """List the members of one kind, those of installed packages too.

    >>> import fedpriv
    >>> sorted(fedpriv.catalogue("attacks", target="kernel").members)
    ['labels', 'membership', 'property']

    Args:
        kind: ``methods``, ``attacks``, ``defenses``, ``datasets``, ``models``, ``payloads``, ``targets`` or ``claims``.
        target: with ``attacks``: only those for this kind of upload.
    """
    if kind not in _ROWS:
        raise unknown_name("list", kind, _ROWS)
    if target is not None and kind != "attacks":
        raise UserError(f"target={shown(target)}: only goes with attacks")
    if kind not in REGISTRIES:
        return Catalogue(kind, _ROWS[kind]())
    if target is not None:
        refuse_unknown_target(target)
    members, target = registry(kind), target and target_name(target)
    rows = {name: _ROWS[kind](name, made) for name, made in members.load_all().items()}
    if target:
        kept = {name: members.load(name) for name in rows if target in members.load(name).targets}
        rows = {name: _attack(name, made, target) for name, made in kept.items()}
    if kind == "models":
        rows = {name: {"kind": "family", "is": ", ".join(current)} for name, current in FAMILIES.items()} | rows
    if len(members) > len(members.builtins):
        rows = {name: row | {"from": members.origin(name) or "fedpriv"} for name, row in rows.items()}
    return Catalogue(kind, rows)


def registry(kind: str) -> Registry:
    """Return the registry of a kind."""
    module, _, attribute = REGISTRIES[kind].partition(":")
    result: Registry = getattr(importlib.import_module(module), attribute)
    return result


def _docstring(kind: str, name: str) -> str:
    """Return the docstring in which a member describes itself; empty where there is none but Python's own."""
    if kind == "methods":  # a method is a constant: its file speaks for it
        return inspect.cleandoc(importlib.import_module(registry(kind)[name].partition(":")[0]).__doc__ or "")
    result = registry(kind).load(name)
    result = getattr(result, "func", result)  # of a partial function, the whole one's
    details = inspect.getdoc(result) or ""
    return "" if details.startswith(f"{getattr(result, '__name__', '')}(") else details


def _sentence(kind: str, name: str) -> str:
    details = summary(_docstring(kind, name))
    return details.removeprefix("Load ").removeprefix("Draw ") if kind == "datasets" else details


def _method(name: str, method: Any) -> Row:
    return {
        "does": method.about or _sentence("methods", name),
        "uploads": ", ".join(method.uploads) or "nothing",
        "broadcasts": ", ".join(method.broadcasts) or "nothing",
        "models": "one architecture" if method.homogeneous else "any",
        "source": method.source,
    }


def _attack(name: str, kind: Any, target: str | None = None) -> Row:
    made = kind()
    return {
        "gives": made.summary,
        **({} if target else {"targets": ", ".join(made.targets)}),
        "needs from the threat model": _needs(made.requirements_for(target), made.needs_in_words),
        "budget": f"{made.budget}={getattr(made, made.budget)}" if made.budget else "none",
    }


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
    return {
        "does": _sentence("defenses", name),
        "guarantee": made.guarantee,
        "adaptive attack": answer_sentence(made.answers, made.unanswered),
        "source": made.source,
    }


_WHERE = {
    "fashion": "embedded, 2,000 images of 28x28 (a part of Fashion-MNIST); the default",
    "digits": "embedded, 1,797 images of 8x8",
    "plane": "drawn from the run's seed",
    "tiny-imagenet": "data_dir with tiny-imagenet-200/ in its original layout",
    "folder": "data_dir with train/ and test/ (or val/), or one folder a class",
}


def _dataset(name: str, _: Any) -> Row:
    where = _WHERE.get(name, "data_dir, or download") if name in registry("datasets").builtins else "its own"
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


def _targets() -> dict[str, Row]:
    return {
        name: {
            "attacks": ", ".join(attacks_for(name)) or f"none: {told_in_clear(name)}",
            "method trained where there is no run": default_method(name) or "none",
        }
        for name in target_names()
    }


def _claims() -> dict[str, Row]:
    return {
        name: {
            "about": claim.quantity,
            "title": claim.title,
            "paper": claim.paper,
            "where": claim.where,
            "values": str(sum(value is not None for row in claim.rows for value in row.values)),
            "needs": "nothing" if claim.counted else ", ".join(dict.fromkeys(column.data for column in claim.columns)),
        }
        for name, claim in claims().items()
    }


_ROWS: dict[str, Callable[..., Any]] = {
    "methods": _method,
    "attacks": _attack,
    "defenses": _defense,
    "datasets": _dataset,
    "models": lambda name, _: {"kind": "model", "is": _sentence("models", name)},
    "payloads": _payload,
    "targets": _targets,
    "claims": _claims,
}


# ---------------------------------------------------------------- one member


LINES, WIDTH = 25, 80
"""Of an explanation as text."""


@dataclass(frozen=True)
class Explanation:
    """Facts, text and paper of one member or word. As text it is a screen of 25 lines at most; a notebook shows all of it.

    Attributes:
        name: the member, or the word.
        kind: ``methods``, ``attacks``, ... as of :func:`fedpriv.catalogue`, or ``words``.
        facts: its row there.
        text: as Markdown, its docstring: formulas and source; options of a method or a defense.
        page: the page of the documentation about it, of attacks; empty for others.
        bibtex: the entry of its paper, of methods; empty for others.
    """

    name: str
    kind: str
    facts: Mapping[str, str]
    text: str = ""
    page: str = ""
    bibtex: str = ""

    @property
    def title(self) -> str:
        """The name and what sort of thing has it."""
        noun = {"datasets": "data set", "payloads": "kind of payload"}.get(self.kind, self.kind.removesuffix("s"))
        return self.name if self.kind == "words" else f"{self.name} ({noun})"

    def __str__(self) -> str:
        lines = [self.title]
        for name, fact in self._facts.items():
            lines += _filled(f"{name}: {fact}", "  ", max_lines=3, placeholder=" ...")
        whole = not (self.page or self.bibtex)
        plain = self.text.replace("`", "").replace("## Options\n\n", "Options: ").replace(":\n\n- ", ":\n- ")
        for part in plain.split("\n\n"):
            block = ["", *(line for item in part.replace("\n- ", "\n\n- ").split("\n\n") for line in _filled(item))]
            if len(lines) + len(block) > LINES - 2:
                whole = False
                break
            lines += block
        return "\n".join(lines if whole else [*lines, "", f"more: fedpriv explain {self.name} --all"])

    @property
    def _facts(self) -> dict[str, str]:
        in_text = ("does", "holds", "is") if self.text else ()  # the text begins with it
        return {name: fact for name, fact in self.facts.items() if fact and name not in in_text}

    def _repr_markdown_(self) -> str:
        facts = "\n".join(f"- {name}: {fact}" for name, fact in self._facts.items())
        parts = [f"# {self.title}", facts, self.text, self.page]
        parts += [f"```bibtex\n{self.bibtex}\n```"] if self.bibtex else []
        return "\n\n".join(part.strip() for part in parts if part)


def _filled(text: str, indent: str = "", **more: Any) -> list[str]:
    inner = f"{indent}  " if indent or text.startswith("- ") else ""
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=inner, **more)


@imports_what_is_named
def explain(name: str) -> Explanation:
    """Explain a method, attack, defense, kind of payload, data set, model, claim, or a word of reports.

    >>> import fedpriv
    >>> fedpriv.explain("fedgh").facts["does"]
    'FedGH: upload class prototypes; the server trains a global head on them.'
    >>> print(fedpriv.explain("ssim"))
    SSIM
    <BLANKLINE>
    Likeness of the structure of two images, 1 for equal ones, about 0 for unrelated
    ones. Computed by torchmetrics on pixels in [0, 1].

    Args:
        name: of a member, ``package.module:NAME``, or a word of the glossary.
    """
    kind: Any = _kind_of(name)
    if kind == "words" and (word := find_word(name)):
        return Explanation(word.names[0], kind, {}, word.text)
    if kind in REGISTRIES and kind != "datasets" and name in registry(kind):
        name = registry(kind).own_name(name)
    facts = dict(catalogue(kind).members.get(name, {}))
    if kind == "payloads" and name in target_names():
        facts |= catalogue("targets").members[name]
    paper = references().get(name, "") if kind == "methods" else ""
    return Explanation(name, kind, facts, _text(kind, name), _page(name) if kind == "attacks" else "", paper)


def _page(name: str) -> str:
    from fedpriv.reports.page import attack_pages

    return attack_pages().get(name, "")


def _kind_of(name: str) -> str:
    if not isinstance(name, str):
        raise UserError(f"name={shown(name)}: expected a name")
    for kind in REGISTRIES:
        if name in registry(kind):
            with contextlib.suppress(UserError):  # of a reference that keeps another kind's contract
                registry(kind).load(name)
                return kind
    if name in FAMILIES:
        return "models"
    if name in claims():
        return "claims"
    if find_word(name):
        return "words"
    known = [*(current for kind in REGISTRIES for current in registry(kind)), *FAMILIES, *claims()]
    near = {other.lower(): other for other in [*known, *(other for word in words() for other in word.names)]}
    close = [repr(near[key]) for key in get_close_matches(name.lower(), near, n=3)]
    hint = f"; did you mean {' or '.join(close)}?" if close else ";"
    raise UserError(f"nothing is called {shown(name)}{hint} fedpriv list KIND lists what there is")


def _text(kind: str, name: str) -> str:
    """Return a member's docstring as Markdown, with its options; of a claim, what is known of it."""
    if kind == "claims":
        claim = claims()[name]
        lines = [*(f"- known: {line}" for line in claim.known), *(f"- not said: {line}" for line in claim.unknown)]
        return "\n\n".join([f"`fedpriv reproduce {name}` puts it to the test.", "\n".join(lines)])
    if name not in registry(kind):
        return ""
    options = getattr(registry(kind).load(name), "options", None) if kind == "methods" else None
    details = inspect.getdoc(options) or "" if is_dataclass(options) else ""
    current = "" if details.startswith(f"{getattr(options, '__name__', '')}(") else details
    parts = [_docstring(kind, name), *([f"## Options\n\n{current}"] if current else [])]
    return "\n\n".join(map(docstring_markdown, parts))
