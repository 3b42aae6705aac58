"""Progress outside a terminal: lines, also where nothing is reported for long."""

import time

from fedpriv.cli import bars


def test_long_work_is_told_of_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(bars, "EVERY", 0.05)
    with bars.Bars().follow("training") as report:
        time.sleep(0.1)
        report(3, 8, "round 1")
    told, last = capsys.readouterr().err.splitlines()
    assert told.startswith("training: 3 of 8, round 1, after ")
    assert last.startswith("training: done in ")


def test_short_work_leaves_one_line(capsys):
    with bars.Bars().follow("training") as report:
        report(8, 8, "round 1")
    assert capsys.readouterr().err == "training: done in 0 s\n"
