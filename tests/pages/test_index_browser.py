"""The index of a folder of results in a real browser: found by words and choices, put in order, read on any screen."""

import os

import pytest
from browser import axe, faint, overflowing, show, unfold
from eval_cases import firsts, reconstruction, stored_attack, truths

import fedpriv

ENTRIES = 6


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Six results of three methods and two kinds of uploads, of which two leak, and a folder of something else."""
    home, secrets = tmp_path_factory.mktemp("index") / "results", truths([1] * 12, shape=(3, 32, 32))
    seen = firsts(secrets)
    control = reconstruction(seen.flip(0), per_client=1)
    for number in range(ENTRIES):
        share = 0.95 if number < 2 else 0.05
        method = ("fedre", "fedgh", "fedallrep")[number % 3]
        about = {"method": method, "target": "entangled" if method == "fedre" else "prototype"}
        place = home / f"{'abcdef'[number]}-of-{method}"
        stored_attack(place, share * seen + (1 - share) / 2, secrets, permuted=control, **about)
        for name in ("about.json", "metrics.json"):
            os.utime(place / name, (1e9 + 1e6 * number,) * 2)
    (home / "foreign").mkdir()
    return fedpriv.report(home, index=True, out=home / "index").pages[0]


def names(driver):
    script = """return [...document.querySelectorAll("#entries article")].filter((one) => !one.hidden)
        .map((one) => JSON.parse(one.dataset.name))"""
    return driver.execute_script(script)


def choice(driver, label):
    from selenium.webdriver.support.select import Select

    return Select(driver.find_element("css selector", f"select[aria-label='{label}']"))


def test_entries_are_found_by_words_and_choices_and_put_in_order(driver, page):
    show(driver, page)
    newest = names(driver)
    assert [name[0] for name in newest] == list("fedcba")
    choice(driver, "Order").select_by_visible_text("by name")
    assert names(driver) == newest[::-1]
    choice(driver, "Order").select_by_visible_text("gravest finding first")
    assert {name[0] for name in names(driver)[:2]} == {"a", "b"}
    choice(driver, "Show results of this method").select_by_visible_text("fedgh")
    assert {name[0] for name in names(driver)} == {"b", "e"}
    choice(driver, "Show results of this finding").select_by_visible_text("images leak")
    assert [name[0] for name in names(driver)] == ["b"]
    assert driver.find_element("css selector", ".tools [role=status]").text == f"1 of {ENTRIES} results"
    driver.find_element("css selector", ".tools input").send_keys("nowhere")
    assert names(driver) == []


def test_choices_of_one_answer_are_not_offered(driver, page):
    show(driver, page)
    labels = [one.get_attribute("aria-label") for one in driver.find_elements("css selector", ".tools select")]
    assert labels == [
        "Show results of this upload",
        "Show results of this method",
        "Show results of this finding",
        "Order",
    ]


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (768, "dark"), (1280, "light")])
def test_it_is_read_on_any_screen(driver, page, width, theme):
    show(driver, page, width, theme)
    unfold(driver)
    assert overflowing(driver) == []
    assert faint(driver) == {}
    assert axe(driver) == []


def test_by_keyboard_a_picture_opens_and_every_control_is_reached(driver, page):
    from selenium.webdriver import ActionChains, Keys

    show(driver, page)
    reached = []
    for _ in range(8):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        reached.append(driver.switch_to.active_element.tag_name)
    assert reached[:7] == ["a", "a", "input", "select", "select", "select", "select"]
    driver.execute_script("arguments[0].focus()", driver.find_element("css selector", ".strip img"))
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert driver.find_elements("css selector", "dialog[open] img")


def test_print_and_no_script(driver, page):
    show(driver, page, theme="dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert driver.execute_script("return getComputedStyle(document.querySelector('.tools')).display") == "none"
    assert faint(driver) == {}
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(driver, page)
        assert len(driver.find_elements("css selector", "#entries article")) == ENTRIES
        assert driver.find_elements("css selector", ".tools") == []
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_it_asks_nobody_for_anything(driver, page):
    driver.get_log("browser")
    show(driver, page)
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert driver.get_log("browser") == []
