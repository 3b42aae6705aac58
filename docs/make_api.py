"""Write the references, ``docs/api.md`` and ``docs/contracts.md``, from docstrings. ``python docs/make_api.py``."""

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedpriv
from fedpriv.cli.options import settings_of
from fedpriv.study import settings as shared
from fedpriv.util.escape import docstring_markdown, marked

PAGE = Path(__file__).with_name("api.md")
CONTRACTS_PAGE = Path(__file__).with_name("contracts.md")

HEAD = """# The public names

What `import fedpriv` offers: the names of `fedpriv.__all__`, imported when they are first used. This page is made from
their docstrings by `python docs/make_api.py`, and a test holds that it is up to date. Messages of `fedpriv.UserError`
name the argument that is wrong, what was given and what would be right.
"""

CONTRACTS_HEAD = """# Contracts

What a member of your own is made of, where it is imported from, and what its hooks are handed;
[a complete example](extending.md) uses most of it. This page is made from docstrings by `python docs/make_api.py`, and a
test holds that it is up to date.
"""

CONTRACTS = {
    "Methods": {
        "fedpriv.federation.method": ("Method", "ClientSetup", "ServerSetup", "LocalTraining", "Plan"),
        "fedpriv.models.split": ("SplitModel", "Blueprint"),
    },
    "Payloads": {"fedpriv.uploads.payload": ("Payload", "tensor", "state", "get_payload", "find_payload")},
    "Defenses": {
        "fedpriv.federation.defense": ("Defense", "ProtectionPlan", "Sender", "UploadContext", "Work"),
        "fedpriv.federation.answer": ("Answer",),
    },
    "Attacks": {
        "fedpriv.attacks.contract": ("Attack", "Declared", "AttackProblem"),
        "fedpriv.attacks.observation": (
            *("Observation", "Knowledge", "ThreatModel", "BatchFacts", "Needs", "TargetId", "Reconstruction", "Cost"),
        ),
        "fedpriv.attacks.inference.base": ("Inference", "InferenceProblem", "Asked", "Candidates", "Scores"),
    },
    "Data sets": {"fedpriv.datasets": ("SourceOptions",), "fedpriv.datasets.types": ("Dataset", "Samples")},
}
"""Section -> module -> the names in it."""


def page() -> str:
    """Return the page of public names as Markdown."""
    _DESCRIBED.clear()
    found = {name: getattr(fedpriv, name) for name in fedpriv.__all__}
    verbs = [name for name, value in found.items() if inspect.isfunction(value)]
    payloads = [name for name, value in found.items() if inspect.isclass(value) and issubclass(value, fedpriv.Payload)]
    others = [name for name in found if name not in (*verbs, *payloads)]
    parts = [HEAD]
    for title, names in (("Verbs", verbs), ("Results and arguments", others), ("Payloads", payloads)):
        parts.append(f"## {title}\n")
        parts += [_entry(name, found[name]) for name in names]
    return "\n".join(parts).rstrip() + "\n"


def contracts() -> str:
    """Return the page of contracts as Markdown."""
    parts = [CONTRACTS_HEAD]
    for title, modules in CONTRACTS.items():
        parts.append(f"## {title}\n")
        for module, names in modules.items():
            parts += [_contract(module, getattr(importlib.import_module(module), name)) for name in names]
    return "\n".join(parts).rstrip() + "\n"


def _contract(module: str, value: Any) -> str:
    lines = [f"### {value.__name__}\n", "```python", f"# {module}"]
    if inspect.isfunction(value):
        lines += [f"def {value.__name__}{_call(value)}: ...", "```\n", _text(value), ""]
        return "\n".join(lines)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    lines += [f"class {value.__name__}:", *(_declared(value) or ["    ..."]), "```\n", _text(value), ""]
    for name, own in vars(value).items():
        called = inspect.isfunction(own)
        hidden = name.startswith("_") or name in [spec.name for spec in fields]  # a field's default is no hook
        if (called or isinstance(own, property)) and not hidden and inspect.getdoc(own):
            first = str(inspect.getdoc(own)).partition("\n\n")[0].replace("\n", " ")
            lines.append(f"- `{name}{_call(own) if called else ''}`: {marked(first)}")
    return "\n".join(lines).rstrip() + "\n"


def _call(function: Callable[..., Any]) -> str:
    """Return the names of a function's parameters, and what it returns."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        names += [] if parameter.name in ("self", "cls") else [parameter.name]
    returns = function.__annotations__.get("return")
    return f"({', '.join(names)})" + (f" -> {returns}" if returns not in (None, "None") else "")


def _declared(value: type) -> list[str]:
    """Return the lines that declare the fields of a class, with the comments that say what they are."""
    source = inspect.getsource(value)
    (tree,) = ast.parse(source).body
    lines, nodes = source.splitlines(), [node for node in getattr(tree, "body", ()) if isinstance(node, ast.AnnAssign)]
    return [line for node in nodes for line in lines[node.lineno - 1 : node.end_lineno]]


def _entry(name: str, value: Any) -> str:
    if inspect.isfunction(value):
        return f"### fedpriv.{name}\n\n{_signature(name, value)}\n\n{_text(value)}\n{_settings(value)}"
    lines = [f"### fedpriv.{name}\n", _text(value), ""]
    for member, own in vars(value).items():
        documented = inspect.isfunction(own) or isinstance(own, (property, classmethod))
        if documented and not member.startswith("_") and inspect.getdoc(own) and not issubclass(value, fedpriv.Payload):
            first = str(inspect.getdoc(own)).partition("\n\n")[0].replace("\n", " ")
            call = "" if isinstance(own, property) else "()"
            lines.append(f"- `{member}{call}`: {first}")
    return "\n".join(lines).rstrip() + "\n"


def _signature(name: str, value: Callable[..., Any]) -> str:
    parameters = inspect.signature(value).parameters.values()
    shown = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        shown.append(("**" if parameter.kind is parameter.VAR_KEYWORD else "") + parameter.name + default)
    return f"```text\nfedpriv.{name}({', '.join(shown)}) -> {value.__annotations__['return']}\n```"


def _default(value: Any) -> str:
    return "SILENT" if isinstance(value, fedpriv.Listener) else repr(value)


_DESCRIBED: list[Any] = []
"""Typed dictionaries that the page has already described."""


def _settings(value: Callable[..., Any]) -> str:
    """Return the settings that a verb takes as further keywords."""
    names = re.findall(r":class:`(\w*(?:Settings|Circumstances))`", inspect.getdoc(value) or "")
    kinds = [getattr(inspect.getmodule(value), name, None) or getattr(shared, name) for name in names]
    new = [kind for kind in kinds if kind not in _DESCRIBED]
    _DESCRIBED.extend(new)
    return "".join(f"\n`{kind.__name__}`:\n\n{_text(kind)}\n\n{_keys(kind)}" for kind in new)


def _keys(kind: type) -> str:
    """Return the keys of a typed dictionary, without those of what it is made of, which stand in other groups."""
    keys = settings_of(kind.__module__, kind.__name__)
    group = next(iter(keys.values())).group
    return "".join(f"- {name}: {marked(key.words)}.\n" for name, key in keys.items() if key.group == group)


def _text(value: Any) -> str:
    """Return a docstring as Markdown; none where a dataclass has only what Python writes for it."""
    told = inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value) and told.startswith(f"{getattr(value, '__name__', '')}("):
        told = ""
    return docstring_markdown(told)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    CONTRACTS_PAGE.write_text(contracts(), encoding="utf-8")
