"""The picture of the frontier and its table; a study in which noise costs what it should."""

import csv
import io
from xml.etree import ElementTree

from frontier_cases import LOOSE, image, member, page

from fedpriv.pages.charts import describe, frontier_svg
from fedpriv.pages.frontier import frontier_rows
from fedpriv.pages.page import table_files


def test_the_picture_is_the_same_every_time_and_well_formed():
    found = page(image(), image(3.0, method="fedre", scalars=640), member())
    picture = frontier_svg(found)
    assert picture == frontier_svg(found)
    ElementTree.fromstring(picture)
    assert (
        picture.count("(upwards: accuracy)"),
        picture != frontier_svg(page(image(), image(2.0, method="fedre"))),
    ) == (3, True)
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
