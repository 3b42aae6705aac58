"""Names that try to be more than names, and readers that tell whether they got through."""

import csv
import io
from html.parser import HTMLParser

from fedpriv.util.escape import csv_cell, one_line

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
