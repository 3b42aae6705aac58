"""Flags made from the verbs: each keyword of a verb is one flag, described by the docstring; each setting by its comment.

Signatures are read from source, so that help comes without torch.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import rich_click as click

from fedpriv.util.escape import marked

F = TypeVar("F", bound=Callable[..., Any])

VERBS = "fedpriv.api."
NEVER = ("listener", "allow_code")  # keywords that no flag is made from
ALSO = {"axes": "--axis", "models": "--model"}
"""Further spellings; several of a kind may be given by the singular too: ``--attack`` for ``attacks``."""


GROUPS = {
    "Circumstances": "Output",
    "PrivacyAuditSettings": "Device and data",
    "SuiteSettings": "Targets and device",
    "SearchSettings": "Search",
}
"""Class of settings -> the title of their flags in ``--help-all``; others have their own name's."""


class Keyword(NamedTuple):
    """A keyword of a verb: types, default in Python's spelling (None where it must be given), words, group in help."""

    types: frozenset[str]
    default: str | None
    words: str
    group: str = "More"


class Command(click.RichCommand):
    """A command of many flags: ``--help`` shows those of no group, ``--help-all`` all of them by group."""

    def format_help(self, ctx: click.RichContext, formatter: Any) -> None:  # type: ignore[override]
        """Write the help, without the flags that only ``--help-all`` shows."""
        for parameter in self.params:
            if isinstance(parameter, click.RichOption):
                parameter.hidden = bool(parameter.panel) and not ctx.meta.get("fedpriv.help_all")
        super().format_help(ctx, formatter)


def _help_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta["fedpriv.help_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def flags_of(
    text: str, *, without: Collection[str] = (), single: Collection[str] = (), first: str = ""
) -> Callable[[F], F]:
    """Add a flag for each keyword of a verb, with one value for ``single`` ones.

    ``first`` are keywords with blanks between that ``--help`` shows; all others stand in groups of ``--help-all``.
    """

    def add(command: F) -> F:
        shown, keywords = first.split(), keywords_of(text)
        flags = [name for name in keywords if name not in (*NEVER, *without)]
        if shown:
            more: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _help_all}
            command = click.option("--help-all", help="Show all options, by group.", **more)(command)
        for name in reversed([*shown, *(name for name in flags if name not in shown)]):
            group = {"panel": keywords[name].group} if shown and name not in shown else {}
            command = _option(name, keywords[name], flags, several=name not in single, **group)(command)
        return command

    return add


def _option(name: str, keyword: Keyword, flags: Collection[str], *, several: bool, **more: Any) -> Callable[[F], F]:
    """Return the flag of a keyword. Its help is the first sentence, with other keywords as flags; Python alone has more."""
    dashed = "--" + name.replace("_", "-")
    parts = marked(keyword.words).partition(". ")[0].rstrip(".").split("`")
    parts[1::2] = ["--" + part.replace("_", "-") if part in flags else part for part in parts[1::2]]
    text = "".join([parts[0][:1].upper() + parts[0][1:], *parts[1:]])
    more["help"] = text.replace(" (default False)", "").replace("default True", "default: yes") + "."
    names = [dashed, ALSO[name]] if name in ALSO else [dashed]
    if keyword.types == {"bool"}:
        if keyword.default in ("True", "None") or "(default True)" in text:
            return click.option(f"{dashed}/--no-{dashed[2:]}", name, default=None, **more)
        return click.option(dashed, name, is_flag=True, **more)
    if "Path" in keyword.types:
        more["type"] = click.Path(path_type=Path)
    elif keyword.types <= {"int", "float"}:
        more["type"] = float if "float" in keyword.types else int
    elif not keyword.types <= {"int", "str"} and several:
        more |= {"multiple": True, "help": f"{more['help'][:-1]} (repeat for more)."}
        names += [dashed[:-1]] if name.endswith("s") and name not in ALSO else []
    return click.option(*names, name, required=keyword.default is None, **more)


@cache
def keywords_of(text: str) -> dict[str, Keyword]:
    """Return the keywords of a verb by name, its settings last."""
    module, _, name = text.partition(":")
    home, verb, _ = _definition(VERBS + module, name)
    assert isinstance(verb, ast.FunctionDef)
    words, args = _words(verb), verb.args
    defaults = [*[None] * (len(args.args) - len(args.defaults)), *args.defaults, *args.kw_defaults]
    results = {
        item.arg: Keyword(
            _types(item.annotation), None if value is None else ast.unparse(value), words.get(item.arg, "")
        )
        for item, value in zip([*args.args, *args.kwonlyargs], defaults, strict=True)
    }
    if args.kwarg is not None:
        unpacked = ast.unparse(args.kwarg.annotation or args.kwarg).removeprefix("Unpack[").removesuffix("]")
        results |= {k: v for k, v in settings_of(home, unpacked).items() if k not in results}
    return results


def settings_of(module: str, name: str) -> dict[str, Keyword]:
    """Return the keys of a typed dictionary, its own first."""
    home, kind, lines = _definition(module, name)
    assert isinstance(kind, ast.ClassDef)
    results: dict[str, Keyword] = {}
    for line in kind.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            group = GROUPS.get(name, name.removesuffix("Settings"))
            comment = [lines[line.lineno - 1].partition("  # ")[2]]
            comment += itertools.takewhile(lambda text: text.startswith("    # "), lines[line.lineno :])
            words = " ".join(text.removeprefix("    # ") for text in comment)
            results[line.target.id] = Keyword(_types(line.annotation), "", words, group)
    for base in kind.bases:
        if ast.unparse(base) != "TypedDict":
            results |= {k: v for k, v in settings_of(home, ast.unparse(base)).items() if k not in results}
    return results


@cache
def _definition(module: str, name: str) -> tuple[str, ast.stmt, list[str]]:
    """Return the module in which a name is defined, its definition, and the lines of the module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    text = Path(str(spec.origin)).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node, text.splitlines()
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


def _words(node: ast.FunctionDef) -> dict[str, str]:
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
