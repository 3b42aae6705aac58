"""Every Python block of a page runs as it stands, one after the other, in a module and a folder of the page's own."""

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

import fedpriv
from fedpriv.attacks import ATTACKS
from fedpriv.cli.main import run
from fedpriv.uploads.payload import DECLARED

HOME = Path(__file__).parents[2]
OWN, SHELL = "docs/own-uploads.md", "$ fedpriv "  # the page whose commands run too
PAGES = {
    "docs/extending.md": ("mine", "random-search"),
    OWN: ("own", "Reconstruction"),
    "README.md": ("readme", "Reconstruction"),
}
"""Page -> the module that its blocks are, by which they call themselves, and what they print among other things."""

SMALL = {"dataset": "digits", "per_class": 20, "rounds": 2}
"""What is trained here in place of a page's whole federation; the command of the README is run by ``.ci/run``."""


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_and_end_in_a_verdict(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train, attack = fedpriv.train, fedpriv.attack
    monkeypatch.setattr(fedpriv, "train", lambda *method, **settings: train(*method, **settings | SMALL))
    quick = {"iterations": 5, "targets": 4}
    monkeypatch.setattr(fedpriv, "attack", lambda run, **settings: attack(run, **settings | quick))
    module = types.ModuleType(PAGES[page][0])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kinds = dict(DECLARED)
    text = (HOME / page).read_text()
    blocks = re.finditer(r"^```(python|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    try:
        for block in blocks:
            if block[1] == "console":
                commands = [
                    line[len(SHELL) :] for line in block[2].splitlines() if page == OWN and line.startswith(SHELL)
                ]
                assert [run(shlex.split(command)) for command in commands] == [0] * len(commands)
                continue
            if block[2].startswith("# mine.py\n"):
                Path("mine.py").write_text(block[2])
            line = text.count("\n", 0, block.start(2))
            code = compile("\n" * line + block[2], str(HOME / page), "exec")  # errors name the page's own line
            exec(code, vars(module))
    finally:
        DECLARED.clear()
        DECLARED.update(kinds)
        ATTACKS._adopted.clear()
    assert PAGES[page][1] in capsys.readouterr().out
