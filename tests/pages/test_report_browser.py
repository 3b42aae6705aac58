"""The report in a real browser: sorting, no network, no sideways scroll on a phone, contrast in both themes, print.

Needs Debian's chromium with its driver, and selenium; skips where one is missing.
"""

import itertools
import json
import re
from base64 import b64decode

import pytest
from browser import CONTRAST, axe, show
from eval_cases import federated, firsts, images, reconstruction, truths
from eval_cases import stored_attack as attack

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.pages.report import StudyFacts, UnfinishedCell, write_report

ATTACKS = 20
SCALARS = {"fedre": 138, "fedgh": 522, "fedallrep": 17344, "fedproto": 530}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page over twenty attacks of 32 x 32 colour images, with every section that needs no budget or stage."""
    home = tmp_path_factory.mktemp("browser")
    single, several = truths([1] * 12, shape=(3, 32, 32)), truths([1, 2, 5, 12] * 3, shape=(3, 32, 32))
    methods = {"fedre": "entangled", "fedgh": "prototype", "fedallrep": "representation", "fedproto": "prototype"}
    homes = []
    for number, (method, seed) in enumerate(itertools.product(methods, range(5))):
        secrets = single if method == "fedallrep" else several
        seen = firsts(secrets)
        blurred = (0.2 * seed * seen + (1 - 0.2 * seed) * images(12, shape=(3, 32, 32), seed=number)[:, None]).clamp(
            0, 1
        )
        chosen = (DefenseChoice("noise", {"scale": 0.3}),) if seed == 4 else ()
        name = ("dip", "pixels", "joint", "unmix", "dip")[seed]
        homes.append(
            attack(
                home / f"{method}-{seed}" / name,
                blurred,
                secrets,
                permuted=reconstruction(images(12, shape=(3, 32, 32), seed=100 + number)[:, None]),
                attack=name,
                method=method,
                target=methods[method],
                knowledge=KnowledgeCard(rounds_seen=12 if name == "unmix" else 1),
                **federated(method, seed % 2, 0.9 + 0.01 * (seed % 2), SCALARS[method], defenses=chosen),
            )
        )
    assert len(homes) == ATTACKS
    failed = UnfinishedCell("fedre--none--s1", "fedre", "none", "entangled", 1, "failed", "stopped: not finite")
    write_report(homes, home / "report", study=StudyFacts(21, (failed,), commands=("fedpriv audit study.toml",)))
    return home / "report" / "report.html"


def column(driver, table, number):
    """Return the values that a column is sorted by, from above."""
    script = """
        return [...document.querySelectorAll(arguments[0] + " tbody tr")].map(
            (row) => row.cells[arguments[1]].dataset.value ?? row.cells[arguments[1]].textContent.trim())"""
    return driver.execute_script(script, table, number)


def head(driver, table, name):
    """Return the button of a header cell, and the number of its column."""
    heads = driver.find_elements("css selector", f"{table} thead th, {table} thead td")
    number = next(i for i, cell in enumerate(heads) if cell.text.lower().startswith(name))
    return heads[number], heads[number].find_element("css selector", "button"), number


def test_sorting_by_mouse(driver, page):
    show(driver, page)
    table = "#card-1 table"
    cell, button, number = head(driver, table, "psnr")
    before = [float(value) for value in column(driver, table, number)]
    button.click()
    assert cell.get_attribute("aria-sort") == "descending"
    assert [float(value) for value in column(driver, table, number)] == sorted(before, reverse=True)
    button.click()
    assert cell.get_attribute("aria-sort") == "ascending"
    assert [float(value) for value in column(driver, table, number)] == sorted(before)
    other, button, number = head(driver, table, "upload")
    button.click()
    assert other.get_attribute("aria-sort") == "ascending"
    assert cell.get_attribute("aria-sort") is None
    names = column(driver, table, number)
    assert names == sorted(names)
    told = driver.execute_script(
        "return [...document.querySelectorAll('[role=status]')].map(e => e.textContent).join('')"
    )
    assert told == "Sorted by upload, ascending."


def test_sorting_by_keyboard(driver, page):
    from selenium.webdriver import ActionChains, Keys

    show(driver, page)
    table = "#card-1 table"
    cell, button, number = head(driver, table, "advantage")
    driver.execute_script("arguments[0].focus()", head(driver, table, "floor")[1])
    ActionChains(driver).send_keys(Keys.TAB).perform()
    assert driver.switch_to.active_element == button
    outline = button.value_of_css_property("outline-style")
    assert outline == "solid"
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert cell.get_attribute("aria-sort") == "descending"
    ActionChains(driver).send_keys(Keys.SPACE).perform()
    assert cell.get_attribute("aria-sort") == "ascending"
    values = [float(value) for value in column(driver, table, number)]
    assert values == sorted(values)


def test_the_skip_link_comes_first_and_leads_to_the_content(driver, page):
    from selenium.webdriver import ActionChains, Keys

    show(driver, page)
    ActionChains(driver).send_keys(Keys.TAB).perform()
    link = driver.switch_to.active_element
    assert link.get_attribute("href").endswith("#content")
    assert link.rect["x"] >= 0
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert driver.current_url.endswith("#content")


def test_nothing_is_fetched_and_nothing_is_complained_of(driver, page):
    driver.get_log("performance")
    driver.get_log("browser")
    show(driver, page)
    asked = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    urls = {entry["params"]["request"]["url"] for entry in asked if entry["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith("data:")} == {page.as_uri()}
    assert driver.get_log("browser") == []


def test_the_policy_stops_what_does_not_belong(driver, page):
    show(driver, page)
    driver.execute_script("""
        const other = document.createElement("script");
        other.textContent = "window.intruder = true";
        document.body.append(other);""")
    assert driver.execute_script("return window.intruder") is None
    driver.get_log("browser")


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_only_tables_scroll_sideways(driver, page, width):
    show(driver, page, width)
    driver.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    wide = """
        return [...document.querySelectorAll("body *")].filter((element) =>
            element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll, pre, .skip, .hidden")
        ).map((element) => element.outerHTML.slice(0, 80))"""
    assert driver.execute_script(wide) == []
    small = (
        """return [...document.querySelectorAll("svg.chart text")].map((text) => text.getBoundingClientRect().height)"""
    )
    assert min(driver.execute_script(small)) >= 10


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(driver, page, theme):
    """WCAG AA: at least 4.5 to 1, computed from the styles that the browser settled on."""
    show(driver, page, theme=theme)
    driver.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 30)"}[theme]
    ratios = dict(driver.execute_script(CONTRAST))
    assert len(ratios) > 15
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5} == {}


def test_names_for_those_who_do_not_see(driver, page):
    show(driver, page)
    nameless = """
        return [...document.querySelectorAll("img, svg[role=img], button, a, [role=group]")].filter((element) =>
            !(element.alt || element.getAttribute("aria-label") || element.textContent.trim())).length"""
    assert driver.execute_script(nameless) == 0
    for landmark in ("main", "header", "nav"):
        assert len(driver.find_elements("css selector", landmark)) == 1
    assert driver.find_element("css selector", "nav").get_attribute("aria-label")


def test_print_shows_everything_on_white(driver, page):
    show(driver, page, theme="dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert driver.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    ratios = dict(driver.execute_script(CONTRAST))
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5} == {}
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    # A4 less its margins is 718 pixels wide: what did not fit would be cut off on paper.
    metrics = {"width": 718, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 718
    assert driver.execute_script("return [...document.querySelectorAll('details')].every((part) => part.open)")
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69, "scale": 1})
    assert b64decode(printed["data"]).startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", b64decode(printed["data"])))
    assert pages <= 3 * ATTACKS


@pytest.mark.slow
def test_twenty_attacks_make_a_page_that_can_be_mailed(page):
    assert page.stat().st_size < 5_000_000


def test_without_the_script_the_tables_are_there(driver, page):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(driver, page)
        assert driver.find_elements("css selector", "th button") == []
        assert len(driver.find_elements("css selector", "#card-1 tbody tr")) > 5
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_has_a_picture_and_an_answer(driver, page, width):
    show(driver, page, width)
    image = driver.find_element("css selector", ".strip:nth-child(2) img")
    assert image.is_displayed()
    assert image.rect["y"] + image.rect["height"] < 900
    marks = [mark.text for mark in driver.find_elements("css selector", "article.upload:first-of-type .marks li")]
    assert [mark.split(":")[0].split(" ", 1)[1] for mark in marks] == [
        "images",
        "representations",
        "membership",
        "properties",
    ]


def test_on_a_phone_rows_are_cards_with_every_value_named(driver, page):
    show(driver, page, 390)
    cell = driver.find_element("css selector", "#card-1 tbody tr td:nth-child(5)")
    named = driver.execute_script("return getComputedStyle(arguments[0], '::before').content", cell)
    assert named == '"PSNR (dB)"'
    assert cell.rect["x"] + cell.rect["width"] <= 390


def test_attacks_are_found_by_words_and_by_finding(driver, page):
    from selenium.webdriver.support.select import Select

    show(driver, page)
    rows = "return [...document.querySelectorAll('table.attacks tbody tr')].filter((row) => !row.hidden).length"
    assert driver.execute_script(rows) == ATTACKS
    driver.find_element("css selector", ".tools input").send_keys("unmix fedre")
    assert driver.execute_script(rows) == 1
    sections = "return [...document.querySelectorAll('section.attack')].filter((part) => !part.hidden).length"
    assert driver.execute_script(sections) == 1
    assert driver.find_element("css selector", ".tools [role=status]").text == f"1 of {ATTACKS} attacks"
    driver.find_element("css selector", ".tools input").clear()
    driver.find_element("css selector", ".tools input").send_keys(" ")
    choice = Select(driver.find_element("css selector", ".tools select"))
    choice.select_by_visible_text("images leak")
    assert 0 < driver.execute_script(rows) < ATTACKS


def test_a_picture_opens_large_by_keyboard_and_closes(driver, page):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

    show(driver, page)
    image = driver.find_element("css selector", ".strip img")
    small = image.rect["width"]
    driver.execute_script("arguments[0].focus()", image)
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    large = driver.find_element("css selector", "dialog[open] img")
    assert large.rect["width"] > 3 * small
    assert driver.find_element("css selector", "dialog p").text == image.get_attribute("alt")
    ActionChains(driver).send_keys(Keys.ESCAPE).perform()
    WebDriverWait(driver, 5).until(lambda page: not page.find_elements("css selector", "dialog"))  # it goes on "close"


def test_a_link_unfolds_what_it_leads_to(driver, page):
    show(driver, page)
    link = driver.find_elements("css selector", "#card-1 tbody a")[-1]
    name = link.get_attribute("href").partition("#")[2]
    driver.execute_script("arguments[0].click()", link)
    assert driver.find_element("css selector", f"#{name} .verdict").is_displayed()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A page over one upload."""
    home, secrets = tmp_path_factory.mktemp("small"), truths([1, 2, 5, 12] * 3)
    homes = [
        attack(home / name, 0.9 * firsts(secrets), secrets, attack=name, target="prototype")
        for name in ("dip", "pixels", "joint", "decoder", "average")
    ]
    write_report(homes, home / "report")
    return home / "report" / "report.html"


def test_a_page_over_one_upload_is_read_in_a_few_minutes(driver, small):
    show(driver, small)
    assert len(driver.execute_script("return document.body.innerText").split()) < 1200


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (768, "light"), (1280, "dark")])
def test_axe_finds_nothing(driver, small, width, theme):
    show(driver, small, width, theme)
    assert axe(driver) == []
