"""The pages of the documentation about attacks, which the package brings along: ``docs/attacks``."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def attack_pages() -> dict[str, str]:
    """Return the Markdown of each attack's page, by the attack's name; a page may be about several.

    Headings begin with the names: ``# dip, joint and pixels: ...``. Of two pages about one attack its own is taken.
    """
    shared: dict[str, str] = {}
    texts: dict[str, str] = {}
    for file in sorted(resources.files("fedpriv.pages").joinpath("manual").iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".md") or file.name == "README.md":
            continue
        text = file.read_text(encoding="utf-8")
        heading = text.partition("\n")[0].removeprefix("# ").partition(":")[0]
        shared |= dict.fromkeys(heading.replace(", ", " and ").split(" and "), text)
        texts[file.name.removesuffix(".md")] = text
    return {name: texts.get(name, text) for name, text in shared.items()}
