"""Flags made from the verbs: each keyword of a verb, and each of its settings, is one flag with the words of its docstring.

Signatures are read from source, so that help comes without torch.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from fedpriv.util.escape import marked

F = TypeVar("F", bound=Callable[..., Any])

VERBS = "fedpriv.experiment.verbs."
NEVER = ("listener", "allow_code")
"""Keywords that no flag is made from."""
ALSO = {"axes": "--axis", "models": "--model"}
"""Further spellings; several of a kind may be given by the singular too: ``--attack`` for ``attacks``."""


@dataclass(frozen=True)
class Keyword:
    """A keyword of a verb: its types, its default in Python's spelling (None where it must be given), its words."""

    name: str
    types: frozenset[str]
    default: str | None
    told: str

    def option(self, single: Collection[str]) -> Callable[[F], F]:
        """Return the decorator that adds the flag."""
        dashed = "--" + self.name.replace("_", "-")
        text = marked(self.told).replace("`", "")
        words: dict[str, Any] = {"help": text[:1].upper() + text[1:].partition(". ")[0].rstrip(".") + "."}
        names = [dashed]
        if self.types == {"bool"}:
            if self.default in ("True", "None") or "(default True)" in text:
                return click.option(f"{dashed}/--no-{dashed[2:]}", self.name, default=None, **words)
            return click.option(dashed, self.name, is_flag=True, **words)
        if self.name in ALSO:
            names.append(ALSO[self.name])
        if "Path" in self.types:
            words["type"] = click.Path(path_type=Path)
        elif self.types <= {"int", "float"}:
            words["type"] = float if "float" in self.types else int
        elif not self.types <= {"int", "str"} and self.name not in single:
            words["multiple"] = True
            if self.name.endswith("s") and self.name not in ALSO:
                names.append(dashed[:-1])
        return click.option(*names, self.name, required=self.default is None, **words)


def flags_of(text: str, *, without: Collection[str] = (), single: Collection[str] = ()) -> Callable[[F], F]:
    """Add a flag for each keyword of a verb."""

    def add(command: F) -> F:
        for keyword in reversed(keywords_of(text)):
            if keyword.name not in (*NEVER, *without):
                command = keyword.option(single)(command)
        return command

    return add


@cache
def keywords_of(text: str) -> tuple[Keyword, ...]:
    """Return the keywords of a verb, its settings last."""
    module, _, name = text.partition(":")
    home, verb = _definition(VERBS + module, name)
    assert isinstance(verb, ast.FunctionDef)
    details, args = _told(verb), verb.args
    defaults: list[ast.expr | None] = [
        *[None] * (len(args.args) - len(args.defaults)),
        *args.defaults,
        *args.kw_defaults,
    ]
    results = {
        item.arg: Keyword(
            item.arg, _types(item.annotation), None if value is None else ast.unparse(value), details.get(item.arg, "")
        )
        for item, value in zip([*args.args, *args.kwonlyargs], defaults, strict=True)
    }
    if args.kwarg is not None:
        unpacked = ast.unparse(args.kwarg.annotation or args.kwarg).removeprefix("Unpack[").removesuffix("]")
        results |= {entry.name: entry for entry in _settings(home, unpacked) if entry.name not in results}
    return tuple(results.values())


def _settings(module: str, name: str) -> Iterator[Keyword]:
    """Yield the keys of a typed dictionary, its own first."""
    home, kind = _definition(module, name)
    assert isinstance(kind, ast.ClassDef)
    details = _told(kind)
    for line in kind.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield Keyword(line.target.id, _types(line.annotation), "", details.get(line.target.id, ""))
    for base in kind.bases:
        if ast.unparse(base) != "TypedDict":
            yield from _settings(home, ast.unparse(base))


@cache
def _definition(module: str, name: str) -> tuple[str, ast.stmt]:
    """Return the module in which a name is defined, and its definition."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    for node in ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return _definition(str(node.module), name)
    raise LookupError(f"{module} has no {name}")


def _types(annotation: ast.expr | None) -> frozenset[str]:
    """Return the names of the types that an annotation allows, without None."""
    if isinstance(annotation, ast.BinOp):
        return _types(annotation.left) | _types(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return _types(annotation.value)
    text = "" if annotation is None else ast.unparse(annotation)
    return frozenset() if text == "None" else frozenset([text])


def _told(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    """Return the entries of the sections of a docstring, by name."""
    texts: dict[str, str] = {}
    last = ""
    for line in inspect.cleandoc(ast.get_docstring(node) or "").splitlines():
        name, colon, text = line.strip().partition(": ")
        if line.startswith("    ") and not line.startswith("     ") and colon:
            last = name
            texts[last] = text
        elif line.startswith("     ") and last:
            texts[last] += f" {line.strip()}"
        else:
            last = ""
    return texts
