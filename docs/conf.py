"""The documentation site: the Markdown of this folder, as Sphinx builds it. ``sphinx-build -W -b html docs build/site``.

What is on the site, in which order and under which headings is what ``README.md`` and the other ``INDEXES`` link to: a code
host shows these lists as they are, and here they become the navigation. Nothing of fedpriv is imported.
"""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HOME = Path(__file__).parent
PROJECT = tomllib.loads((HOME.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "fedpriv"
author = "the authors of fedpriv"
version = release = PROJECT["version"]
html_title = f"fedpriv {release}"
html_show_copyright = False

root_doc = "README"
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["**/.ipynb_checkpoints"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 4
nb_execution_mode = "off"  # what notebooks show is stored in them, and a test runs them
copybutton_exclude = ".linenos, .gp, .go"

INDEXES = ("README", "attacks/README", "tutorials/README")
"""Pages whose links are the navigation."""

_LISTED = re.compile(r"^- \[([^\]]+)\]\((?!https?:)([^)#]+)\.(?:md|ipynb)\)", re.MULTILINE)
"""A line of a list that begins with a link to a page: its text and its place."""


def navigation(text: str) -> str:
    """Return a table of contents for each section of an index, of the pages that its lists link to."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        title, _, body = section.partition("\n")
        pages = [f"{shown} <{place}>" for shown, place in _LISTED.findall(body)]
        if pages:
            caption = [] if title.startswith("# ") else [f":caption: {title}"]
            found.append("\n".join(["", "```{toctree}", ":hidden:", *caption, *pages, "```"]))
    return "\n".join(found)


FROM_ABOVE = {"overview": "README.md", "contributing": "CONTRIBUTING.md", "changes": "CHANGELOG.md"}
"""Page -> the file beside this folder that it is on the site."""


def from_above(text: str) -> str:
    """Return the text of a file above this folder with its links as they are from within."""
    pages = {file: f"{page}.md" for page, file in FROM_ABOVE.items()}

    def inside(link: re.Match[str]) -> str:
        place, mark, heading = link[1].partition("#")
        new = pages.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else f"../{place}")
        return f"]({new}{mark}{heading})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", inside, text)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname in FROM_ABOVE:
        source[0] = from_above((HOME.parent / FROM_ABOVE[docname]).read_text(encoding="utf-8"))
    if docname in INDEXES:
        source[0] += navigation(source[0])


def _as_index(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":  # the name that a server of static files opens
        (Path(app.outdir) / "index.html").write_bytes((Path(app.outdir) / f"{root_doc}.html").read_bytes())


def setup(app: Sphinx) -> None:
    """Have the indexes read with their navigation, files above as pages, and the first page found."""
    app.connect("source-read", _read)
    app.connect("build-finished", _as_index)
