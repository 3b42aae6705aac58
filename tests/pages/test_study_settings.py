"""Settings of a study on its page: TOML that reads back as what was written, and what was filled in."""

import json
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from fedpriv.pages.study_files import StudyFile
from fedpriv.pages.study_settings import study_settings, toml

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES = st.recursive(
    st.one_of(st.integers(-(2**40), 2**40), st.booleans(), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_settings_read_back_as_they_were_written(values):
    assert tomllib.loads(toml(values)) == values


def test_settings_by_hand():
    written = {
        "methods": [{"name": "fedproto", "label": "My prototypes"}, "fedgh"],
        "seeds": [0, 1],
        "rounds_seen": None,
        "federation": {"lr": 0.1},
    }
    found = study_settings(StudyFile(format=1, source="a/s.toml", command="c", written=written, targets=48))
    assert found.title == "s.toml"
    assert found.written == (
        'methods = [\n  { name = "fedproto", label = "My prototypes" },\n  "fedgh",\n]\nseeds = [0, 1]\n\n'
        "[federation]\nlr = 0.1"
    )
    assert json.loads(found.complete) == {"targets": 48}
    assert study_settings(StudyFile(source=None)).title == "flags"
    assert study_settings(StudyFile()).written == ""
