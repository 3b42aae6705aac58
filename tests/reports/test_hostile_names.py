"""Names from outside stay names: on every page, in Markdown, in tables and in pictures, whatever they hold."""

import itertools
from pathlib import Path

import pytest
from hostile_cases import CHECKS, HOSTILE, as_cell, cells
from hostile_pages import FIELDS, RECORDED, WRITTEN, attacks_page, check_pages, files_of, reference, runs_page
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.util.escape import shell_word

pytestmark = pytest.mark.hostile


def shifts():
    """As many rows of names as it takes for each name to stand in some field, whatever stands in the others."""
    return range(0, len(RECORDED), FIELDS)


@pytest.mark.parametrize("shift", shifts())
def test_pages_over_attacks(shift, tmp_path, tmp_path_factory):
    known = reference(attacks_page, tmp_path_factory.getbasetemp() / "reference-attacks")
    chosen = list(itertools.islice(itertools.cycle(RECORDED), shift, shift + FIELDS))
    made = files_of(attacks_page(tmp_path, iter(chosen)))
    assert set(made) >= {"report.html", "report.md", "results.csv", "frontier.svg", "frontier.csv"}
    check_pages(made, known, [None if place == WRITTEN else name for place, name in enumerate(chosen)])
    table = cells(made["results.csv"])
    shown = {cell for row in table[1:] for cell in row}
    for place in (0, 1, 2):  # method, data set, attack
        assert as_cell(chosen[place]) in shown


@pytest.mark.parametrize("shift", range(0, len(RECORDED), 5))
def test_pages_over_runs(shift, tmp_path, tmp_path_factory, monkeypatch):
    known = reference(runs_page, tmp_path_factory.getbasetemp() / "reference-runs")
    chosen = list(itertools.islice(itertools.cycle(RECORDED), shift, shift + 5))
    made = files_of(runs_page(tmp_path, iter(chosen)))
    assert set(made) >= {"runs.html", "runs.csv"}
    chosen[3] = Path(chosen[3]).name  # a folder of images goes by its own name
    check_pages(made, known, chosen)
    shown = {cell for row in cells(made["runs.csv"])[1:] for cell in row}
    assert {as_cell(chosen[0]), as_cell(chosen[4])} <= shown


TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.sampled_from("\\`*_~#>|$@[]()<&!-+=.:;0123456789 ab\n\t\rw/\"'{}%^"), max_size=30),
    st.text(max_size=20),
)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@given(name=TEXTS)
def test_a_name_is_its_text(check, name):
    check(name)


def test_a_shell_reads_the_words_as_they_were(tmp_path):
    import os
    import shutil
    import subprocess

    if shutil.which("bash") is None:
        pytest.skip("no bash")
    names = [name for name in HOSTILE if "\x00" not in name and "\ud800" not in name]
    script = "printf '%s\\0' " + " ".join(map(shell_word, names))
    told = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert [os.fsdecode(one) for one in told.stdout.split(b"\0")[:-1]] == names
