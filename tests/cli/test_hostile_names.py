"""Names from outside on the terminal: folders of classes, paths and labels, none of which steers it."""

import shlex

import numpy as np
import pytest
from command_line import call
from hostile_cases import HOSTILE, Skeleton, cells, steers
from PIL import Image

from fedpriv.cli import common
from fedpriv.util.escape import terminal_line

pytestmark = pytest.mark.hostile

PATHS = [name for name in HOSTILE if not {"/", "\x00", "\ud800"} & set(name) and len(name) < 200]
"""Names that a file may have."""


def test_tables_and_lines_of_the_terminal(capsys, monkeypatch):
    for width in ("200", "40"):
        monkeypatch.setenv("COLUMNS", width)
        rows = [{"name": name, name: "x"} for name in HOSTILE]
        for row in rows:
            common.print_table(row["name"], [row])
            common.say(row["name"], quiet=False, as_json=False)
            common.Terminal(quiet=False).say(row["name"])
    out, err = capsys.readouterr()
    assert steers(out + err) == set()
    assert "[red]rich[/red][/]" in out


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A folder of images whose classes are called as badly as a file system allows."""
    home = tmp_path_factory.mktemp("images") / "$x$ <b>`y`"
    for number, name in enumerate(PATHS):
        (home / name).mkdir(parents=True)
        for place in range(3):
            pixels = np.full((8, 8), 20 * place + number, dtype=np.uint8)
            Image.fromarray(pixels).save(home / name / f"{place}.png")
    return home


@pytest.mark.parametrize("name", ["a`<b>x</b>`b two\n\n<b>lines</b>", "\x1b[31m $x$ and $y"])
def test_a_run_and_its_report_may_lie_anywhere(name, classes, tmp_path, capsys):
    flags = ("--dataset", "folder", "--data-dir", classes, "--clients", "2", "--partition", "iid", "--rounds", "1")
    command = ("train", "--method", "local", "--models", "small", *flags, "--out", f"{name}/run")
    code, out, err = call(capsys, *command)
    assert (code, steers(out + err)) == (0, set()), err
    code, out, err = call(capsys, "report", f"{name}/run", f"{name}/run/../run", "--out", f"{name}/page")
    assert (code, steers(out + err)) == (0, set()), err
    page = (tmp_path / name / "page" / "runs.html").read_bytes().decode()
    assert not {tag for tag, *_ in Skeleton(page).tags} & {"b", "script", "comment"}
    assert len(cells((tmp_path / name / "page" / "runs.csv").read_bytes().decode())) == 2


def test_a_command_can_be_pasted_and_is_one_line():
    told = common.command_line("train", "--out", "a b", "--resume")
    assert shlex.split(told) == ["fedpriv", "train", "--out", "a b", "--resume"]
    for name in HOSTILE:
        assert terminal_line(common.command_line("train", name)).count("\n") == 0
