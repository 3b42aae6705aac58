"""A leaderboard in a real browser: bars lie where the numbers say, on any screen, in both themes, on paper."""

import pytest
from browser import axe, faint, overflowing, show, unfold
from entry_cases import entry

from fedpriv.pages.leaderboard_page import write_page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three entries of one ranking, one alone in its own, and a remark."""
    made = [
        entry("fedproto", gain=3.0, p_value=1e-6),
        entry("fedgh", gain=0.0, entered_by="A Laboratory with a long name"),
        entry("a_package.with_long_names:AMethodOfTheirs", gain=-2.0, clients=3, source="https://example.org/a/paper"),
        entry("fedtgp", gain=1.0, rounds_seen=5),
    ]
    return write_page(made, tmp_path_factory.mktemp("board"), remarks=["prototype/fedgh.json: not attacked by dip"])[0]


def test_bars_lie_by_the_line_of_a_guess_as_the_figures_say(driver, page):
    show(driver, page, 1280)
    middle = """
        return [...document.querySelectorAll("tbody tr")].filter((row) => row.querySelector(".scale")).map((row) =>
            ["i", "u"].map((tag) => {
                const box = row.querySelector(".scale " + tag).getBoundingClientRect();
                return (box.left + box.right) / 2; }))"""
    first, second, third = driver.execute_script(middle)
    assert first[1] > first[0] + 5, "more than a guess lies right of the line"
    assert second[1] == pytest.approx(second[0], abs=1)
    assert third[1] < third[0] - 5


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (768, "light"), (1280, "light")])
def test_it_is_read_on_any_screen(driver, page, width, theme):
    show(driver, page, width, theme)
    unfold(driver)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert overflowing(driver) == []
    assert faint(driver) == {}
    assert axe(driver) == []


def test_on_paper_nothing_is_cut_off(driver, page):
    show(driver, page, 718, theme="dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 718
    assert faint(driver) == {}
