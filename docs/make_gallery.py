"""Write ``docs/gallery.md``: every picture of the pages, and where it stands. ``python docs/make_gallery.py``."""

import re
from pathlib import Path

HOME = Path(__file__).parent
PAGE = HOME / "gallery.md"

HEAD = """# Gallery

Every picture of these pages, under the page that says how it was made and what it is worth. A picture of faces, clothes
or numbers that resembles the truth is no leak by itself: look at the guess and the control beside it first. This page is
made by `python docs/make_gallery.py`, and a test holds that it is up to date.
"""

PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.(?:png|svg))\)")
"""A picture in Markdown: its text and its place."""


FIRST = HOME.parent / "README.md"
"""The project's first page, which stands on the site as ``overview.md``."""


def pages() -> list[Path]:
    """Return the project's first page, then those of the folder by name, subfolders last; not the gallery itself."""
    found = (page for page in HOME.rglob("*.md") if page != PAGE)
    return [FIRST, *sorted(found, key=lambda page: (len(page.relative_to(HOME).parts), page))]


def gallery() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for page in pages():
        text = page.read_text(encoding="utf-8")
        pictures = PICTURE.findall(text)
        if not pictures:
            continue
        title = text.partition("\n")[0].removeprefix("# ")
        place = "overview.md" if page == FIRST else page.relative_to(HOME).as_posix()
        parts.append(f"## {title}\n\n[The page]({place})\n")
        for told, place in pictures:
            picture = (page.parent / place).resolve().relative_to(HOME.resolve()).as_posix()
            parts.append(f"[![{told}]({picture})]({picture})\n\n*{told}.*\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(gallery(), encoding="utf-8")
