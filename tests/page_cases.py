"""A page as a browser reads it."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects tags and text, of that what shows while nothing is unfolded, and checks that tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.unfolded = [], [], "", ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        folds = self.open.count("details") - ("summary" in self.open)
        if not folds and not {"style", "script", "title"} & set(self.open):
            self.unfolded += data
