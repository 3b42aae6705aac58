"""The picture of the frontier and its table; a study in which noise costs what it should."""

import csv
import io
from xml.etree import ElementTree

import pytest
from frontier_cases import LOOSE, image, member, page
from hypothesis import given
from hypothesis import strategies as st
from looped import each

from fedpriv.pages.chart_axes import Decibels, Linear
from fedpriv.pages.columns import table_files
from fedpriv.pages.csv_table import frontier_rows
from fedpriv.pages.frontier_plot import describe, frontier_svg, panels


def crowd(n):
    return page(
        *(image(0.5 + 0.01 * i, method=f"method-{i}", accuracy=0.8 + 0.001 * i, scalars=100 + i) for i in range(n))
    )


def test_the_picture_is_the_same_every_time_and_well_formed():
    found = page(image(), image(3.0, method="fedre", scalars=640), member())
    picture = frontier_svg(found)
    assert picture == frontier_svg(found)
    ElementTree.fromstring(picture)
    assert [panel.title for panel in panels(found[0])] == ["Images", "Membership", "Communication"]
    assert "prefers-color-scheme:dark" in picture
    assert "not run" not in describe(found[0])


def test_the_table_has_a_line_for_each_point():
    found = page(image(2.0, stands=True), image(-3.0, method="fedre", reasons=LOOSE), member(0.1))
    text = table_files("frontier.csv", frontier_rows(found))["frontier.csv"]
    rows = {row["upload"]: row for row in csv.DictReader(io.StringIO(text))}
    assert (rows["fedgh"]["images"], rows["fedgh"]["images_found"], rows["fedgh"]["membership"]) == (
        "2.0",
        "leak",
        "0.1",
    )
    assert (rows["fedre"]["verdict_kind"], rows["fedre"]["images_found"]) == ("untested", "untested")
    assert rows["fedre"]["accuracy_after_broadcast"] == "0.9"


@given(low=st.floats(-30, 30), span=st.floats(1.0, 60))
def test_ticks_of_leakage_say_where_they_are(low, span):
    ticks = Decibels(low, low + span, 0, 100).ticks()
    assert len(ticks) >= 3
    for value, text in ticks:
        assert float(text.replace("−", "-")) == pytest.approx(value, abs=1e-9)


@given(low=st.floats(-0.1, 0.9), span=st.floats(0.02, 1.1))
def test_ticks_of_accuracy_say_where_they_are(low, span):
    for value, text in Linear(low, low + span, 0, 100).ticks():
        assert float(text.removesuffix(" %")) == pytest.approx(100 * value, abs=1e-9)
        assert 0 <= value <= 1 + 1e-9


@each("n", [1, 2, 7, 25])
def test_labels_do_not_overlap(n):
    (found,) = crowd(n)
    for panel in panels(found):
        boxes = panel.label_boxes
        assert len(boxes) == n
        assert None not in boxes
        assert panel.numbered == (n > 8)
        for i, one in enumerate(boxes):
            assert one.left >= 0
            assert one.right <= panel.width
            for two in boxes[:i]:
                assert not one.overlaps(two)
