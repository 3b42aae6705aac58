"""The tutorial on NVFlare jobs: its commands run as they stand, and end in what the page says."""

import csv
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedpriv.sources.facts import Facts
from fedpriv.util.config import parse

HOME = Path(__file__).parents[2] / "docs" / "tutorials" / "audit-my-nvflare-job"
PAGE = (HOME / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def test_what_the_page_shows_of_files_stands_in_them():
    assert all(line in (HOME / "job.py").read_text() for line in blocks("python")[0].splitlines())
    facts = (HOME / "facts.toml").read_text()
    assert blocks("toml")[0] in facts
    assert parse(Facts, tomllib.loads(facts), "facts.toml").model == "hospital:Net"
    for name in ("client.py", "hospital.py"):
        assert "fedpriv." not in (HOME / name).read_text()


@pytest.mark.slow
@pytest.mark.frameworks
def test_the_commands_of_the_page_find_what_it_says(tmp_path):
    pytest.importorskip("nvflare", reason="NVFlare, whose simulator runs the job, is not installed")
    there = shutil.copytree(HOME, tmp_path / "job")
    programs = {"python": [sys.executable], "fedpriv": [sys.executable, "-m", "fedpriv"]}
    for line in "".join(blocks("sh")).splitlines():
        program, *rest = shlex.split(line)
        done = subprocess.run(
            [*programs[program], *rest], cwd=there, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    with (there / "results" / "mine" / "results.csv").open() as file:
        rows = {int(row["round"]): row for row in csv.DictReader(file)}
    told = {int(one): float(gain) for one, gain in re.findall(r"^\| (\d) \|.*\| \+([\d.]+) \[", PAGE, re.M)}
    assert rows.keys() == told.keys()
    for number, row in rows.items():
        # Exact inverses move with the processor and the order in which sites answer, and so does an interval over few sites.
        assert told[number] > 10
        assert float(row["advantage_db"]) > 5
        assert row["method"].startswith("recorded (nvflare ")
    # Beyond the least effect, whatever the processor: a leak is claimed of the first round.
    assert float(rows[0]["advantage_db_low"]) > 0.5
