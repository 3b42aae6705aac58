"""What a study calls its methods and defenses, and what charts make of it."""

import pytest
from eval_cases import ABOUT, but, defended

from fedpriv.pages.frontier import point_labels
from fedpriv.pages.labels import labelled
from fedpriv.scoring.records import Labels


@pytest.mark.parametrize(
    ("label", "title", "name", "told"),
    [
        ("My prototypes", "", "fedproto", "My prototypes (fedproto)"),
        ("fedproto", "", "fedproto", "fedproto"),
        ("", "", "fedproto", "fedproto"),
        ("fedre mechanism=RAP", "fedre mechanism=RAP", "fedre", "fedre mechanism=RAP"),
        ("fedre again", "", "fedre", "fedre again (fedre)"),
        ("none", "none", "none", "none"),
        ("noise scale=1.0", "noise scale=1.0", "noise", "noise scale=1.0"),
        ("noise scale=1.0", "", "noise", "noise scale=1.0 (noise)"),
    ],
)
def test_a_label_stands_beside_the_name_unless_it_says_it(label, title, name, told):
    assert labelled(label, title, name) == told


def test_points_of_charts_carry_labels():
    own = but(ABOUT, method="fedproto", target="prototype")
    abouts = [
        but(own, defenses=(defended(scale=0.3),), labels=Labels(method="Mine", defense="Weak")),
        but(own, labels=Labels(method="Mine", defense="none")),
        own,
    ]
    assert point_labels(abouts) == ["Mine (fedproto) + Weak (noise scale=0.3)", "Mine (fedproto)", "fedproto"]
