"""Names that try to be more than names, and readers that tell whether they got through."""

import csv
import io
import unicodedata
import xml.etree.ElementTree as ElementTree
from functools import cache
from html.parser import HTMLParser

from fedpriv.reports.page import environment
from fedpriv.util.escape import (
    code_block,
    code_span,
    csv_cell,
    markdown,
    markup,
    one_line,
    picture_text,
    shell_word,
    terminal_line,
    visible,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' onmouseover='alert(1)",
    '" autofocus onfocus="alert(1)',
    "</pre></table></body><h1>mine",
    "</style><style>*{display:none}",
    "<!-- hidden",
    "]]><![CDATA[",
    "&lt;b&gt;",
    "&#60;b&#62; &copy;",
    "{{ 7 * 7 }}{% raw %}",
    "a`<b>x</b>`b",
    "``` html",
    "*bold* _em_ __strong__ ~~gone~~",
    "[click](http://example.invalid)",
    "![x](http://example.invalid/x.png)",
    "[a][b]",
    "[a]: http://example.invalid",
    "<http://example.invalid>",
    "http://example.invalid www.example.invalid me@example.invalid",
    "a | b \\| c \\",
    "# heading #",
    "1. one",
    "12) twelve",
    "- item",
    "+ item",
    "> quote",
    "===",
    "---",
    "$\\frac{1}{0}$ and $x",
    "$$",
    "_hidden",
    '=HYPERLINK("http://example.invalid","x")',
    "+1+1",
    "-1.5",
    "@SUM(A1)",
    "'=1+1",
    "\t=1+1",
    "\r=1+1",
    "＝1+1",
    'a,b;c"d"',
    "two\nlines\r\nand\n\n    code\n\n<b>more</b>",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "back\x08space\x7f\x00nul\x9b31m",
    "right\u202eto left\u2069\ufeff",
    "line\u2028para\u2029graph\u0085next",
    "surro\udcffgate\ud800",
    "[red]rich[/red][/]",
    "%s %(x)s {0} {x}",
    "../../etc/passwd",
    "日本語 🙂 ل",
    "x" * 300,
    "  blanks  ",
)


def plain(text):
    """The text of a name on a page: white space is one blank, control characters are spelled out."""
    return one_line(text)


class Skeleton(HTMLParser):
    """The elements of a page with the names of their attributes, its text, and the values of attributes that run or load."""

    RUNNING = ("href", "src", "action", "style", "class", "id")

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.values, self.words = [], [], []
        self.feed(page)
        self.close()
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *(name for name, _ in attrs)))
        # A page may differ in where its pictures' bytes are; what is no picture of ours would be a name's doing.
        self.values += [
            (tag, name, "data:image" if str(value).startswith("data:image/") else value)
            for name, value in attrs
            if name in self.RUNNING
        ]
        self.words += [f" {value} " for name, value in attrs if name in ("alt", "aria-label")]

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}",))

    def handle_comment(self, data):
        self.tags.append(("comment",))

    def handle_decl(self, decl):
        self.tags.append(("declaration",))

    def unknown_decl(self, data):
        self.tags.append(("unknown",))

    def handle_pi(self, data):
        self.tags.append(("instruction",))

    def handle_data(self, data):
        self.words.append(data)


class Written(HTMLParser):
    """Elements and text of Markdown, rendered by a parser of CommonMark with tables, with raw HTML and links let through."""

    def __init__(self, markdown):
        from markdown_it import MarkdownIt

        super().__init__(convert_charrefs=True)
        self.tags, self.links, self.words = [], [], []
        rendered = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
        self.feed(rendered)
        self.close()
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        self.words += [f" {value} " for name, value in attrs if name == "alt"]
        assert {name for name, _ in attrs} <= {"href", "src", "alt", "style", "start"}, attrs

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_comment(self, data):
        self.tags.append("comment")

    def handle_decl(self, decl):
        self.tags.append("declaration")

    def handle_data(self, data):
        self.words.append(data)


def cells(table):
    """The rows of a table as a spreadsheet opens it: no text begins a formula, and all rows have as many columns."""
    rows = list(csv.reader(io.StringIO(table, newline="")))
    for row in rows:
        assert len(row) == len(rows[0])
        for cell in row:
            if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠"):
                float(cell)  # a number
            assert "\n" not in cell
    return rows


def as_cell(text):
    """A text as a table holds it."""
    return str(csv_cell(text))


def steers(text):
    """The characters of a terminal's output that steer it."""
    return {c for c in text if c != "\n" and not c.isprintable()}


# ---------------------------------------------------------------- one name in one kind of output

PLACES = ("{}", "# {}", "- **{}: x** y", "| a | b |\n| --- | --- |\n| {} | c |", "x {} y", "![{}](a.svg)")
"""Where Markdown of ours has a name."""


def check_markdown(name):
    """A name is its own text wherever it stands, and nothing but text."""
    for place in PLACES:
        found, known = Written(place.replace("{}", markdown(name))), harmless_at(place)
        assert " ".join(found.text.split()) == " ".join(known.text.replace("name", plain(name)).split())
        if plain(name):
            assert (found.tags, found.links) == (known.tags, known.links)


@cache
def harmless_at(place):
    return Written(place.replace("{}", "name"))


def check_code(name):
    """A name is its own text as code within a line, and in lines of its own."""
    inline, block = Written(f"x {code_span(name)} y"), Written(f"x\n\n{code_block(name)}\n\ny")
    assert inline.text == " ".join(f"x {plain(name)} y".split())
    assert inline.tags == ["p", "code", "/code", "/p"]
    shown = " ".join(" ".join(map(visible, name.splitlines())).split())
    assert block.text == " ".join(f"x {shown} y".split())
    assert set(block.tags) <= {"p", "/p", "pre", "/pre", "code", "/code"}


def check_html(name):
    """A name is its own text in an element and an attribute, of pages and of pictures."""
    template = environment(autoescape=True).from_string('<p class="{{ name }}">{{ name }}</p>')
    found = Skeleton(template.render(name=name))
    assert found.tags == [("p", "class"), ("/p",)]
    assert found.text == " ".join(visible(name).split())
    root = ElementTree.fromstring(f'<g a="{markup(name)}">{markup(name)}</g>')
    assert (root.text or "", root.get("a"), len(root)) == (plain(name), plain(name), 0)


def check_table(name):
    """A cell begins no formula, and the name can be had back from it."""
    cell = csv_cell(name)
    assert cell in (plain(name), "'" + plain(name))
    assert (cell == plain(name)) is not cell.startswith("'")  # so that an apostrophe in front is always ours
    assert not cell.startswith(("=", "+", "-", "@"))
    assert csv_cell(-1.5) == -1.5


def check_picture(name):
    """A name is set letter by letter, not as a formula, and is in the legend."""
    from matplotlib import cbook

    shown = picture_text(name)
    assert not cbook.is_math_text(shown)
    assert not shown.startswith("_")
    assert shown.replace("\\$", "$").lstrip() == (plain(name) if len(plain(name)) <= 100 else plain(name)[:99] + "…")


def check_terminal(name):
    """A name is one line and steers nothing, in a message as in a command."""
    assert terminal_line(name).isprintable()
    found = steers(shell_word(name).replace("\u200d", "").replace("\u200c", ""))
    assert all(unicodedata.category(one) == "Zs" for one in found)  # a wide space in quotes steers nothing
    assert "\n" not in shell_word(name)


CHECKS = {
    "Markdown": check_markdown,
    "code in Markdown": check_code,
    "HTML and SVG": check_html,
    "table": check_table,
    "picture": check_picture,
    "terminal": check_terminal,
}
"""Kind of output -> check of one name in it."""
