"""Write ``docs/api.md``: the public names of fedpriv with their signatures and docstrings. ``python docs/make_api.py``."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedpriv

PAGE = Path(__file__).with_name("api.md")

HEAD = """# The public names

What `import fedpriv` offers: the names of `fedpriv.__all__`, imported when they are first used. This page is made from
their docstrings by `python docs/make_api.py`, and a test holds that it is up to date. Messages of `fedpriv.UserError`
name the argument that is wrong, what was given and what would be right.
"""


def page() -> str:
    """Return the page as Markdown."""
    found = {name: getattr(fedpriv, name) for name in fedpriv.__all__}
    verbs = [name for name, value in found.items() if inspect.isfunction(value)]
    payloads = [name for name, value in found.items() if inspect.isclass(value) and issubclass(value, fedpriv.Payload)]
    others = [name for name in found if name not in (*verbs, *payloads)]
    parts = [HEAD]
    for title, names in (("Verbs", verbs), ("Results and arguments", others), ("Payloads", payloads)):
        parts.append(f"## {title}\n")
        parts += [_entry(name, found[name]) for name in names]
    return "\n".join(parts).rstrip() + "\n"


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


def _settings(value: Callable[..., Any]) -> str:
    """Return the settings that a verb takes as further keywords."""
    module = inspect.getmodule(value)
    text = next((str(hint) for hint in value.__annotations__.values() if str(hint).startswith("Unpack[")), "")
    settings = getattr(module, text.removeprefix("Unpack[").removesuffix("]"), None)
    return "" if settings is None else f"\n`{settings.__name__}`:\n\n{_text(settings)}\n"


def _text(value: Any) -> str:
    """Return a docstring with its reStructuredText marks as Markdown's, its sections as they are."""
    told = inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value) and told.startswith(f"{getattr(value, '__name__', '')}("):
        told = ""
    marked = (
        told.replace("``", "`").replace(":class:", "").replace(":func:", "").replace(":meth:", "").replace(":data:", "")
    )
    lines = []
    section = False
    example = False
    for line in marked.splitlines():
        if line.startswith(">>> ") and not example:
            lines.append("```pycon")
        elif example and not line:
            lines.append("```")
        example = line.startswith(">>> ") or (example and bool(line))
        if line in ("Args:", "Attributes:", "Returns:", "Raises:"):
            lines += [f"{line}", ""]
            section = True
        elif section and line.startswith("    ") and not line.startswith("     "):
            lines.append(f"- {line.strip()}")
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
