"""What a study calls its methods and defenses, and what charts make of it."""

import pytest

from fedpriv.pages.frontier import point_labels
from fedpriv.pages.labels import labelled


@pytest.mark.parametrize(
    ("what", "label", "name", "told"),
    [
        ("method", "My prototypes", "fedproto", "My prototypes (fedproto)"),
        ("method", "fedproto", "fedproto", "fedproto"),
        ("method", None, "fedproto", "fedproto"),
        ("method", "fedre mechanism=RAP", "fedre", "fedre mechanism=RAP"),
        ("method", "fedre mechanism=RAP target=prototype", "fedre", "fedre mechanism=RAP"),
        ("method", "fedre again", "fedre", "fedre again (fedre)"),
        ("defense", "none", "none", "none"),
        ("defense", "noise scale=1.0", "noise", "noise scale=1.0"),
        ("defense", "noise strong", "noise scale=1.5", "noise strong (noise scale=1.5)"),
        ("defense", "clip + noise scale=[1, 2]", "clip + noise", "clip + noise scale=[1, 2]"),
        ("defense", "Both scale=1", "clip + noise scale=1", "Both scale=1 (clip + noise scale=1)"),
    ],
)
def test_a_label_stands_beside_the_name_unless_it_says_it(what, label, name, told):
    about = {"labels": {what: label}} if label else {}
    assert labelled(about, what, name) == told


def test_points_of_charts_carry_labels():
    run = {"defenses": [{"name": "noise", "options": {"scale": 0.3}}]}
    abouts = [
        {"method": "fedproto", "target": "prototype", "run": run, "labels": {"method": "Mine", "defense": "Weak"}},
        {"method": "fedproto", "target": "prototype", "run": {}, "labels": {"method": "Mine", "defense": "none"}},
        {"method": "fedproto", "target": "prototype", "run": {}},
    ]
    assert point_labels(abouts) == ["Mine (fedproto) + Weak (noise scale=0.3)", "Mine (fedproto)", "fedproto"]
