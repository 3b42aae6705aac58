"""Pictures of the pages as a browser shows them, for the documentation. Needs chromium with its driver, and selenium.

::

    fedpriv attack --target model --out results/model
    python docs/make_screenshots.py results/model

The pages are shown as they are, so run the commands with relative paths: nothing of the machine then stands on them.
"""

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image

HOME = Path(__file__).parent / "screens"
MOST = 120_000
"""Bytes of a picture."""

SHOTS = {
    "report-wide": ("report.html", 1280, 800, "light"),
    "report-phone": ("report.html", 390, 780, "light"),
    "report-dark": ("report.html", 1280, 800, "dark"),
}
"""Name -> page, width and height in pixels, colour scheme."""


def browser() -> Any:
    """Return a browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.add_argument("--disable-background-networking")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def first_screen(driver: Any, page: Path, width: int, height: int, theme: str) -> Image.Image:
    """Return the first screen of a page."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"media": "", "features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page.resolve().as_uri())
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def small(picture: Image.Image) -> bytes:
    """Return a picture as a PNG file of at most :data:`MOST` bytes, with as many colours as that allows."""
    for colours in (128, 64, 32, 16):
        buffer = io.BytesIO()
        reduced = picture.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        reduced.save(buffer, format="png", optimize=True)
        if len(buffer.getvalue()) <= MOST:
            break
    else:
        sys.exit("a screen does not fit even with 16 colours; show less of the page")
    return buffer.getvalue()


def main() -> None:
    """Take every picture from the folders that are given."""
    parser = argparse.ArgumentParser(description="Take the pictures of the pages for the documentation.")
    for name in ("report",):
        parser.add_argument(name, type=Path, help=f"folder that holds {name}.html")
    given = vars(parser.parse_args())
    pages = {f"{name}.html": folder / f"{name}.html" for name, folder in given.items()}
    missing = [str(page) for page in pages.values() if not page.is_file()]
    if missing:
        sys.exit(f"{missing[0]}: no such page; the commands that make it stand in {Path(__file__).name}")
    HOME.mkdir(exist_ok=True)
    driver = browser()
    try:
        for name, (page, width, height, theme) in SHOTS.items():
            (HOME / f"{name}.png").write_bytes(small(first_screen(driver, pages[page], width, height, theme)))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
