"""The catalogue that is read without torch says what the members say of themselves."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from fedpriv.cli.common import Flags
from fedpriv.experiment.verbs.cataloguing import KINDS, rows_of
from fedpriv.util.arguments import spelled

DOCS = Path(__file__).parents[2] / "docs"

LISTED = """
import sys, json
import fedpriv
from fedpriv.cli.common import Flags
from fedpriv.util.arguments import spelled
told = {kind: fedpriv.catalogue(kind).table() for kind in sys.argv[1:]}
told |= {target: fedpriv.catalogue("attacks", target=target).table() for target in ("kernel", "extractor")}
with spelled(Flags()):
    told["flags"] = fedpriv.catalogue("datasets").table()
assert "torch" not in sys.modules
print(json.dumps(told))
"""


def test_the_committed_catalogue_is_what_the_command_makes():
    spec = importlib.util.spec_from_file_location("make_catalogue", DOCS / "make_catalogue.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.PLACE.read_text(encoding="utf-8") == made.text(), "python docs/make_catalogue.py"


def test_lists_are_read_without_torch_and_say_the_same():
    done = subprocess.run([sys.executable, "-c", LISTED, *KINDS], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    for kind in KINDS:
        assert told[kind] == rows_of(kind), kind
    for target in ("kernel", "extractor"):
        assert told[target] == rows_of("attacks", target)
    with spelled(Flags()):
        assert told["flags"] == rows_of("datasets")
