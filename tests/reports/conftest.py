"""A real browser for the tests of pages: Debian's chromium with its driver, and selenium; skips where one is missing."""

import shutil

import pytest


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
