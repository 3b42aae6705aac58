"""What an attack shows at its end: the finding, the page, the next command; and the page in a browser."""

import pytest
import rich_click as click
from command_line import call


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_printed_ends_with_the_finding_the_page_and_the_next_command(trained, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    arguments = ["attack", "--target", "prototype", "--run", trained, "--attack", "pixels", "--attack", "membership"]
    cheap = ["--iterations", "4", "--targets", "3", "--no-control", "--out", "shown"]
    code, out, _ = call(capsys, *arguments, *cheap)
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[-2:] == ["report: shown/report.html", "next:   fedpriv report shown --open"]
    told = out.partition("└")[2]
    assert "prototype uploads of fedgh, digits: Not tested hard enough to say." in " ".join(told.split())
    code, out, _ = call(capsys, *arguments, *cheap, "--resume", "--verbose")
    assert code == 0
    assert "\nmembership: " in out  # each attack's reasons, beside the sentence of all


def test_a_report_is_opened_in_the_browser(trained, capsys, tmp_path, monkeypatch):
    cheap = ["--attack", "pixels", "--iterations", "2", "--targets", "2", "--no-control", "--quiet"]
    assert call(capsys, "attack", "--target", "prototype", "--run", trained, *cheap, "--out", "attacked")[0] == 0
    opened = []
    monkeypatch.setattr(click, "launch", lambda page: opened.append(page) or 0)
    assert call(capsys, "report", "attacked", "--out", "page", "--open")[0] == 0
    assert opened == [(tmp_path / "page" / "report.html").as_uri()]
    monkeypatch.setattr(click, "launch", lambda page: 1)
    code, _, err = call(capsys, "report", "attacked", "--out", "again", "--open")
    assert (code, "no browser could be started; open" in err) == (0, True)
