"""Identifiers of the package are the field's words."""

import re
import tokenize
from collections import Counter
from pathlib import Path

import fedpriv

PARTS = {"found", "told", "held", "asked", "own", "one", "place"}
"""Parts of names that say nothing of what a thing is."""

FEW = 930
"""Places at which they may stand: a tenth of what there once were (9,382)."""

HOMEMADE = "toldapart|bestguess|blindguess|stranger|knowledgecard|permuted|nottested|madeup|bettered"
"""Names that the field does not use, without underscores and capitals."""


def test_identifiers_are_the_words_of_the_field():
    parts: Counter[str] = Counter()
    homemade = []
    for path in sorted(Path(fedpriv.__file__).parent.rglob("*.py")):
        with path.open("rb") as file:
            names = [token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME]
        homemade += [f"{path}: {name}" for name in names if re.search(HOMEMADE, name.replace("_", "").lower())]
        parts.update(part.lower() for name in names for part in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name))
    assert not homemade
    few = {part: parts[part] for part in PARTS}
    assert sum(few.values()) <= FEW, few
