"""Write ``docs/leaderboard.md`` from the entries in ``leaderboard``: ``python docs/make_leaderboard.py``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fedpriv
from fedpriv.pages.leaderboard_page import write_page

PAGE = Path(__file__).with_name("leaderboard.md")
ENTRIES = PAGE.parents[1] / "leaderboard"

HOW = """
## Add an entry

An entry is a file, `leaderboard/PAYLOAD/METHOD.json` (with a defense, local work or another data set than the embedded
one in its name), in the published schema ([leaderboard-entry.schema.json](schema/leaderboard-entry.schema.json)): the
upload, the configuration of its run, every attack on it with its knowledge card, figures, intervals and verdict,
accuracy, the size of an upload, the commands that make it again, and versions.

```console
$ fedpriv attack --target prototype --method fedtgp --out results/fedtgp
$ fedpriv leaderboard leaderboard --add results/fedtgp --entered-by "Your name"
$ fedpriv leaderboard leaderboard --out results/leaderboard
```

The second command writes the file, the third checks all of them and draws the page. A study does as well as a result:
each of its uploads becomes an entry, all seeds together; where a result asks [how far a leak reaches](evaluation.md), so
does each of its settings, judged together as on its page. Of a method that this package does not have, `--source` says
where it is described; its upload can come [from your own code](own-uploads.md) or [a recorded app](recording.md).
Nothing of the machine goes along: absolute paths in commands become `DIR`.

What is checked: the schema; that the file lies where its upload and method say; that every finding follows from the
entry's own comparisons, by the rule of every page (a claim needs five clients and an adjusted p-value of 0.05;
nothing found needs no reason against it); that means lie in their intervals; that no attack saw more rounds or
clients than there were; that the rules of scoring are today's. An entry at fault is named, left out, and makes the
command's exit code 2. What is told beside: attacks of the default suite that were not run, and attacks that have
changed since. Whether the figures were measured, no check can tell: run the entry's command, and [`fedpriv
compare`](report.md) it with yours.

Uploads are ranked within one kind, one data set and one knowledge card, by their strongest attack; what stands alone
there is not ranked. Places of entries whose intervals overlap mean nothing. From twenty entries of a kind on,
`fedpriv report RESULT --leaderboard leaderboard` says on a card how many of them give away less, and how many of
those cannot be told apart.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page as Markdown.

    Raises:
        SystemExit: where an entry is at fault.
    """
    board = fedpriv.leaderboard(ENTRIES)
    if board.faults:
        raise SystemExit("\n".join(board.faults))
    remarks = [line.replace(f"{ENTRIES}/", "") for line in board.remarks]
    with tempfile.TemporaryDirectory() as folder:
        _, markdown = write_page(board.entries, Path(folder), remarks)
        made = markdown.read_text(encoding="utf-8").rstrip("\n")
    return f"{made}\n{HOW}"


if __name__ == "__main__":
    main()
