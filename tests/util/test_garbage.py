"""The command's processes leave what they import out of garbage collection; a library leaves that to its user."""

import subprocess
import sys

import pytest

CODE = """
import gc, sys
import fedpriv
from fedpriv.util import garbage
if {own}:
    garbage.spare_imports()
before, counted = gc.get_freeze_count(), len(gc.get_objects())
walks = []
gc.callbacks.append(lambda phase, told: walks.append(told["generation"]))
fedpriv.KnowledgeCard
assert "torch" in sys.modules and gc.isenabled()
print(before, gc.get_freeze_count(), walks.count(2))
class Knot:
    pass
held = [Knot() for _ in range(3)]
for one in held:
    one.itself = one
del held, one
print(gc.collect())
"""


@pytest.mark.parametrize("own", [True, False])
def test_imports_are_walked_through_in_others_processes_only(own):
    done = subprocess.run([sys.executable, "-c", CODE.format(own=own)], capture_output=True, text=True, check=True)
    before, after, walks, collected = map(int, done.stdout.split())
    assert collected >= 3  # what is made afterwards is collected as ever
    if own:
        assert walks == 0
        assert after > before + 100_000
    else:
        assert before == after
        assert walks > 0


def test_a_failed_import_leaves_collection_on():
    code = """
import gc
from fedpriv.util import garbage
garbage.spare_imports()
try:
    with garbage.importing():
        raise ImportError
except ImportError:
    print(gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
