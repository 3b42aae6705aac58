"""A page in a browser: at a width, in a colour scheme; the contrast of its text; and whether axe finds fault with it."""

from pathlib import Path

import pytest


def show(driver, page, width=1400, theme="light"):
    """Open the page anew at a width, in a colour scheme."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"media": "", "features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page.as_uri())


CONTRAST = """
    const level = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const opaque = (text) => !/rgba\\(.*, 0\\)|transparent/.test(text);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (opaque(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const seen = new Map();
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const element = walk.currentNode.parentElement;
        if (!walk.currentNode.textContent.trim() || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
        const style = getComputedStyle(element);
        const front = element.closest("svg") ? style.fill : style.color;
        const [a, b] = [level(front), level(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const key = element.tagName + "." + (element.className.baseVal ?? element.className);
        if (!seen.has(key) || seen.get(key) > ratio) seen.set(key, ratio);
    }
    return [...seen];"""
"""Script that returns (element, ratio) of every text to what is behind it, as the browser settled on it."""


def unfold(driver):
    """Open every fold of the page."""
    driver.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def axe(driver):
    """Return the faults that axe finds in the page that is shown, all folds open: (rule, element)."""
    package = pytest.importorskip("axe_core_python", reason="axe is not installed (pip install axe-core-python)")
    unfold(driver)
    script = (Path(package.__path__[0]) / "axe.min.js").read_text(encoding="utf-8")
    driver.set_script_timeout(180)  # a busy machine takes long
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": script})  # which the page's policy does not stop
    found = driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
    assert len(found["passes"]) > 10
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]


def overflowing(driver):
    """Return the elements that reach beyond the right edge of the window, but for those that scroll by themselves."""
    return driver.execute_script("""
        return [...document.querySelectorAll("body *")].filter((element) =>
            element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll, pre, .skip, .hidden")
        ).map((element) => element.outerHTML.slice(0, 80))""")


def faint(driver):
    """Return the texts whose contrast to what is behind them is below that of WCAG AA, 4.5 to 1."""
    return {name: round(ratio, 2) for name, ratio in driver.execute_script(CONTRAST) if ratio < 4.5}
