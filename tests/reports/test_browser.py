"""Pages in a real browser: read on any screen and on paper in both themes, and asking nobody for anything.

Needs Debian's chromium with its driver, and selenium; skips where one is missing.
"""

import itertools
import json
import shutil

import pytest
from browser import axe, faint, overflowing, show, unfold
from eval_cases import federated, firsts, images, reconstruction, truths
from eval_cases import stored_attack as attack

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.storage import load_attack
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.reports.report import StudyFacts, UnfinishedCell, write_results

SCALARS = {"fedre": 138, "fedgh": 522, "fedallrep": 17344, "fedproto": 530}


@pytest.fixture(scope="module")
def driver():
    pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException

    chromium, helper = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or helper is None:
        pytest.skip("chromium or chromedriver is not installed (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(helper))
    except WebDriverException as error:
        pytest.skip(f"chromium does not start here: {str(error).splitlines()[0]}")
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page over a study of eight attacks on 32 x 32 colour images."""
    home = tmp_path_factory.mktemp("browser")
    single, several = truths([1] * 12, shape=(3, 32, 32)), truths([1, 2, 5, 12] * 3, shape=(3, 32, 32))
    methods = {"fedre": "entangled", "fedgh": "prototype", "fedallrep": "representation", "fedproto": "prototype"}
    homes = []
    for number, (method, seed) in enumerate(itertools.product(methods, (0, 4))):
        secrets = single if method == "fedallrep" else several
        seen = firsts(secrets)
        blurred = (0.2 * seed * seen + (1 - 0.2 * seed) * images(12, shape=(3, 32, 32), seed=number)[:, None]).clamp(
            0, 1
        )
        chosen = (DefenseChoice("noise", {"scale": 0.3}),) if seed == 4 else ()
        name = "unmix" if method == "fedre" else "dip"
        homes.append(
            attack(
                home / f"{method}-{seed}" / name,
                blurred,
                secrets,
                shuffled=reconstruction(images(12, shape=(3, 32, 32), seed=100 + number)[:, None]),
                attack=name,
                method=method,
                target=methods[method],
                knowledge=ThreatModel(rounds_seen=12 if name == "unmix" else 1),
                **federated(method, seed % 2, 0.9 + 0.01 * (seed % 2), SCALARS[method], defenses=chosen),
            )
        )
    failed = UnfinishedCell("fedre--none--s1", "fedre", "none", "entangled", 1, "failed", "stopped: not finite")
    study = StudyFacts(2, (failed,), commands=("fedpriv audit study.toml",))
    write_results([load_attack(one) for one in homes], {}, home / "report", study=study)
    return home / "report" / "report.html"


def white_on_paper(driver, page):
    show(driver, page, 718, theme="dark")  # A4 less its margins: what did not fit would be cut off on paper
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 718
    assert faint(driver) == {}


def test_the_page_is_read_on_any_screen_and_on_paper(driver, report):
    for width, theme in ((390, "light"), (768, "dark"), (1280, "light")):
        show(driver, report, width, theme)
        unfold(driver)
        assert overflowing(driver) == [], width
        assert faint(driver) == {}, theme
    white_on_paper(driver, report)


def test_nothing_is_fetched_and_nothing_is_complained_of(driver, report):
    driver.get_log("performance")
    driver.get_log("browser")
    show(driver, report)
    seen = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    urls = {entry["params"]["request"]["url"] for entry in seen if entry["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith("data:")} == {report.as_uri()}
    assert driver.get_log("browser") == []


def test_a_link_into_a_fold_unfolds_it(driver, report):
    show(driver, report)
    driver.execute_async_script("location.hash = '#attack-2'; setTimeout(arguments[0], 300)")
    opened = "return [...document.querySelectorAll('details[open]')].map((part) => part.id)"
    assert driver.execute_script(opened) == ["attacks", "attack-2"]


def test_axe_finds_no_fault(driver, report):
    show(driver, report)
    assert axe(driver) == []
