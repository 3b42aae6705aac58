"""The page over two results in a real browser: bars lie where the numbers say, on any screen, in both themes, on paper."""

import pytest
from browser import axe, faint, overflowing, show, unfold
from eval_cases import firsts, stored_attack, truths

import fedpriv


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two suites on the same twelve images: one attack got worse, one did not change."""
    home, secrets = tmp_path_factory.mktemp("compared"), truths([1] * 12, shape=(3, 32, 32))
    seen = firsts(secrets)
    for suite, share in (("first", 0.9), ("second", 0.4)):
        stored_attack(home / suite / "dip", share * seen + (1 - share) / 2, secrets)
        stored_attack(home / suite / "pixels", 0.5 * seen, secrets, options={"iterations": 100 * share})
    return fedpriv.compare(home / "first", home / "second", out=home / "page").page


def test_dots_and_bars_lie_by_the_line_of_no_difference_as_the_verdicts_say(driver, page):
    show(driver, page, 1280)
    middle = """
        return [...document.querySelectorAll("#changes tbody tr")].map((row) => ["i", "u", "b", "em"].map((tag) => {
            const box = row.querySelector(".scale " + tag).getBoundingClientRect();
            return [box.left, box.right, (box.left + box.right) / 2]; }))"""
    worse, same = driver.execute_script(middle)
    line, dot, bar, band = worse
    assert bar[1] < line[2], "the interval lies below zero"
    assert bar[0] - 1 <= dot[2] <= bar[1] + 1
    assert dot[2] < band[0], "outside of what is noise"
    assert same[1][2] == pytest.approx(same[0][2], abs=1)


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
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 718
    assert faint(driver) == {}
