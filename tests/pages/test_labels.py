"""What a study calls its methods and defenses, and what charts make of it."""

import pytest

from fedpriv.pages.frontier import point_labels
from fedpriv.pages.labels import labelled


@pytest.mark.parametrize(
    ("what", "label", "title", "name", "told"),
    [
        ("method", "My prototypes", None, "fedproto", "My prototypes (fedproto)"),
        ("method", "fedproto", None, "fedproto", "fedproto"),
        ("method", None, None, "fedproto", "fedproto"),
        ("method", "fedre mechanism=RAP", "fedre mechanism=RAP", "fedre", "fedre mechanism=RAP"),
        ("method", "fedre again", None, "fedre", "fedre again (fedre)"),
        ("defense", "none", "none", "none", "none"),
        ("defense", "noise scale=1.0", "noise scale=1.0", "noise", "noise scale=1.0"),
        ("defense", "noise scale=1.0", None, "noise", "noise scale=1.0 (noise)"),
    ],
)
def test_a_label_stands_beside_the_name_unless_it_says_it(what, label, title, name, told):
    about = {"labels": {what: label, f"{what}_title": title}} if label else {}
    assert labelled(about, what, name) == told


def test_points_of_charts_carry_labels():
    run = {"defenses": [{"name": "noise", "options": {"scale": 0.3}}]}
    abouts = [
        {"method": "fedproto", "target": "prototype", "run": run, "labels": {"method": "Mine", "defense": "Weak"}},
        {"method": "fedproto", "target": "prototype", "run": {}, "labels": {"method": "Mine", "defense": "none"}},
        {"method": "fedproto", "target": "prototype", "run": {}},
    ]
    assert point_labels(abouts) == ["Mine (fedproto) + Weak (noise scale=0.3)", "Mine (fedproto)", "fedproto"]
