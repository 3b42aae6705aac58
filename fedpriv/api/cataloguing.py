"""The verbs ``catalogue``, members of a kind, ``explain``, one member or word, and ``doctor``, this installation."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import fedpriv
from fedpriv.api.named_code import verb
from fedpriv.attacks import ATTACKS, attacks_for, target_names, told_in_clear
from fedpriv.claims import claims
from fedpriv.datasets import DATASETS
from fedpriv.defenses import DEFENSES
from fedpriv.federation.answer import answer_sentence
from fedpriv.methods import METHODS, default_method, references
from fedpriv.models import FAMILIES, MODELS
from fedpriv.pipeline.plan import target_name
from fedpriv.study.saving import Tabular
from fedpriv.uploads import PAYLOADS
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import docstring_markdown, summary
from fedpriv.util.glossary import find_word, words
from fedpriv.util.rates import measure_rates
from fedpriv.util.registry import Registry

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Needs

Kind = Literal["methods", "attacks", "defenses", "datasets", "models", "payloads", "targets", "claims"]
Row = dict[str, str]

REGISTRIES: Mapping[str, Registry] = {
    "methods": METHODS,
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "payloads": PAYLOADS,
    "datasets": DATASETS,
    "models": MODELS,
}
"""Kind -> registry of its members. A reference is of the first kind whose contract it keeps."""

_READ = ("datasets", "models")
"""Kinds of which no more than docstrings is listed: these are read from source, without torch."""


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
    members, target = REGISTRIES[kind], None if target is None else target_name(target)
    made = {**dict.fromkeys(members.builtins), **members.load_all(own=False)} if kind in _READ else members.load_all()
    rows = {name: _ROWS[kind](name, member) for name, member in made.items()}
    if target:
        rows = {name: _attack(name, member, target) for name, member in made.items() if target in member.targets}
    if kind == "models":
        rows = {name: {"kind": "family", "is": ", ".join(current)} for name, current in FAMILIES.items()} | rows
    if len(members) > len(members.builtins):
        rows = {name: row | {"from": members.origin(name) or "fedpriv"} for name, row in rows.items()}
    return Catalogue(kind, rows)


def _docstring(kind: str, name: str) -> str:
    """Return the docstring in which a member describes itself."""
    if kind == "methods":  # a method is a constant: its file speaks for it
        return inspect.cleandoc(importlib.import_module(REGISTRIES[kind][name].partition(":")[0]).__doc__ or "")
    if kind in _READ and name in REGISTRIES[kind].builtins:
        return _read_docstring(*REGISTRIES[kind][name].split(":"))
    result = REGISTRIES[kind].load(name)
    return _written(getattr(result, "func", result))  # of a partial function, the whole one's


def _read_docstring(module: str, name: str) -> str:
    """Return the docstring of a function from its source, of a partial one the whole one's."""
    tree, made = _tree(module), name
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == name:
            made = ast.unparse(node.value.args[0])
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == made)
    return ast.get_docstring(next(found)) or ""


@cache
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    return ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))


def _written(thing: Any) -> str:
    """Return the docstring of a class or function; empty where there is none but Python's own."""
    details = inspect.getdoc(thing) or ""
    return "" if details.startswith(f"{getattr(thing, '__name__', '')}(") else details


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
    where = _WHERE.get(name, "data_dir, or download") if name in DATASETS.builtins else "its own"
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


@dataclass(frozen=True)
class Explanation:
    """Facts, text and paper of one member or word. As text it has no page and no entry of a paper; a notebook shows all.

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

    def __str__(self) -> str:
        noun = {"datasets": "data set", "payloads": "kind of payload"}.get(self.kind, self.kind.removesuffix("s"))
        title = self.name if self.kind == "words" else f"{self.name} ({noun})"
        in_text = ("does", "holds", "is") if self.text else ()  # the text begins with it
        facts = "\n".join(f"- {name}: {fact}" for name, fact in self.facts.items() if fact and name not in in_text)
        return "\n\n".join(part.strip() for part in (f"# {title}", facts, self.text) if part)

    def _repr_markdown_(self) -> str:
        paper = f"```bibtex\n{self.bibtex}\n```" if self.bibtex else ""
        return "\n\n".join(part.strip() for part in (str(self), self.page, paper) if part)


@verb()
def explain(name: str) -> Explanation:
    """Explain a method, attack, defense, kind of payload, data set, model, claim, or a word of reports.

    >>> import fedpriv
    >>> fedpriv.explain("fedgh").facts["does"]
    'FedGH: upload class prototypes; the server trains a global head on them.'
    >>> fedpriv.explain("ssim").text.partition(",")[0]
    'Likeness of the structure of two images'

    Args:
        name: of a member, ``package.module:NAME``, or a word of the glossary.
    """
    kind: Any = _kind_of(name)
    if kind == "words" and (word := find_word(name)):
        return Explanation(word.names[0], kind, {}, word.text)
    if kind in REGISTRIES and kind != "datasets" and name in REGISTRIES[kind]:
        name = REGISTRIES[kind].own_name(name)
    facts = dict(catalogue(kind).members.get(name, {}))
    if kind == "payloads" and name in target_names():
        facts |= catalogue("targets").members[name]
    paper, page = references().get(name, "") if kind == "methods" else "", ""
    if kind == "attacks":
        from fedpriv.eval.endpoints import INFERENCES
        from fedpriv.reports.page import attack_pages

        page = attack_pages().get(name, "")
        asks = next((find_word(endpoint) for endpoint, primaries in INFERENCES.items() if primaries[0] == name), None)
        facts = ({"endpoint": asks.text} if asks else {}) | facts
    return Explanation(name, kind, facts, _text(kind, name), page, paper)


def _kind_of(name: str) -> str:
    if not isinstance(name, str):
        raise UserError(f"name={shown(name)}: expected a name")
    for kind in REGISTRIES:
        if name in REGISTRIES[kind]:
            with contextlib.suppress(UserError):  # of a reference that keeps another kind's contract
                REGISTRIES[kind].load(name)
                return kind
    if name in FAMILIES:
        return "models"
    if name in claims():
        return "claims"
    if find_word(name):
        return "words"
    known = [*(current for kind in REGISTRIES for current in REGISTRIES[kind]), *FAMILIES, *claims()]
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
    if name not in REGISTRIES[kind]:
        return ""
    options = _written(REGISTRIES[kind].load(name).options) if kind == "methods" else ""
    parts = [_docstring(kind, name), *([f"## Options\n\n{options}"] if options else [])]
    return "\n\n".join(map(docstring_markdown, parts))


BOUND = 0.01
"""Largest difference from the CPU's gradient, as a share of its norm; rounding as TF32 does makes 0.0004."""


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """Findings on an installation. As text it can be pasted into a bug report: the user's home is not in it.

    Attributes:
        findings: of each check its ``name``, ``status`` (``ok`` or ``failed``) and ``told``, a line for people.
    """

    findings: tuple[Mapping[str, str], ...]

    @property
    def failed(self) -> tuple[Mapping[str, str], ...]:
        """The findings that have failed: work that needs these will fail."""
        return tuple(finding for finding in self.findings if finding["status"] == "failed")

    def table(self) -> Sequence[Mapping[str, str]]:
        """Return the findings, one row each."""
        return self.findings

    def __str__(self) -> str:
        return "\n".join("{status:<7}  {name}: {told}".format_map(finding) for finding in self.findings)


def doctor(*, device: str = "auto") -> Diagnosis:
    """Return the versions, a gradient checked, the machine's rates and iterations for a guard; problems are findings.

    Args:
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; what it computes is compared with the CPU.
    """
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "packages": _packages,
        "computing": lambda: _computing(device),
        "speed": lambda: (True, str(measure_rates())),
        "guard": lambda: _guarding(device),
    }
    findings = []
    for name, check in checks.items():
        try:
            good, text = check()
        except Exception as error:
            good, text = False, f"{type(error).__name__}: {error}"
        line = " ".join(text.split()).replace(str(Path.home()), "~")
        findings.append({"name": name, "status": "ok" if good else "failed", "told": line})
    return Diagnosis(tuple(findings))


def _packages() -> tuple[bool, str]:
    """Return the versions of the packages that fedpriv and its extras name, as far as they are there."""
    lines = [f"fedpriv {fedpriv.__version__}", f"{platform.python_implementation()} {platform.python_version()}"]
    for needed in importlib.metadata.requires("fedpriv") or ():
        name = "".join(itertools.takewhile(lambda letter: letter.isalnum() or letter in "-_.", needed))
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{name} {importlib.metadata.version(name)}")
    return True, ", ".join(dict.fromkeys(lines))


def _computing(text: str) -> tuple[bool, str]:
    """Compare a gradient on the device with the CPU's; its images are the embedded digits, which are so read too."""
    import torch
    import torchvision  # noqa: F401  (compiled for one version of torch)

    from fedpriv.datasets import load_dataset
    from fedpriv.util import seeds
    from fedpriv.util.compute import pick_device

    device = pick_device(text)
    images, _ = load_dataset("digits").samples.batch(torch.arange(64))
    kernel = torch.randn(8, 1, 3, 3, generator=seeds.generator(0, "doctor"))

    def gradient(position: torch.device) -> torch.Tensor:
        inputs = images.to(position).requires_grad_()
        return torch.autograd.grad(torch.conv2d(inputs, kernel.to(position)).tanh().square().sum(), inputs)[0].cpu()

    expected = gradient(torch.device("cpu"))
    apart = float((gradient(device) - expected).norm() / expected.norm())  # NaN is no match either
    machine = platform.platform() + (
        "" if sys.platform == "linux" else ": a system that fedpriv is not tested on (Linux is)"
    )
    details = f"{machine}; a gradient on {device} is {apart:.2g} from the CPU's (at most {BOUND})"
    return apart <= BOUND, details


def _guarding(device: str) -> tuple[bool, str]:
    """Return how many iterations of a guard's search fit ten seconds, by what 100 more take on four images and LeNet."""
    import torch
    from torch import nn

    from fedpriv.models.zoo import lenet_sigmoid

    data = fedpriv.load("fashion", per_class=11)
    images, labels = data.images, data.labels
    with torch.random.fork_rng(devices=[]):
        extractor, width = lenet_sigmoid((1, 28, 28))
        model = nn.Sequential(extractor, nn.Linear(width, 10))
    sent = torch.autograd.grad(nn.functional.cross_entropy(model(images[:4]), labels[:4]), [*model.parameters()])
    how: dict[str, Any] = {"model": model, "images": images[:4], "labels": labels[:4], "auxiliary": images[4:]}
    how |= {"device": device, "attacks": "inverting-gradients"}
    took = [fedpriv.guard(fedpriv.Gradient(sent), **how, iterations=number).seconds for number in (20, 20, 120)]
    number = int(10 / max(1e-4, (took[2] - took[1]) / 100))
    about = f"about {number // 100 * 100 or number:,} iterations in 10 s here (LeNet, four images of 28 x 28)"
    return True, f"a client's attack on its own update (fedpriv.guard) makes {about}"
