"""What a study calls its methods and defenses, and what charts make of it."""

from looped import each

from fedpriv.pages.labels import labelled


@each(
    "label, title, name, told",
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
