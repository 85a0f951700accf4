"""Headless Chromium for the page's tests: one session, what it logged, what it asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

MISSING = (
    "no Chromium: apt-get install chromium chromium-driver (tools/system.sh does), and "
    "pip install selenium; the report page is NOT tried in a browser"
)
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
)


class Browser:
    """A page at a time, as wide and in such colours as is asked for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, url: str, width: int = 1280, height: int = 900, dark: bool = False, still: bool = True
    ) -> None:
        """Open `url` anew and wait until its graph, if any, is drawn; the logs are empty."""
        self.resize(width, height)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.command("Emulation.setEmulatedMedia", media="", features=features)
        self.driver.get("about:blank")
        self.logged()
        self.requested()
        self.driver.get(url)
        self.wait("[...document.querySelectorAll('canvas')].every(one => one.dataset.frames > 0)")

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def command(self, name: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)

    def ask(self, expression: str) -> Any:
        """What an expression of the page's is."""
        return self.driver.execute_script(f"return {expression}")

    def wait(self, expression: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 20, poll_frequency=0.02).until(lambda _: self.ask(expression))

    def settle(self) -> None:
        """Until two frames have passed without anything that waits to be drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def press(self, *keys: str) -> None:
        """Keys, one after the other, wherever the focus is."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()
        self.settle()

    def focused(self) -> str:
        """What has the focus: its id, else its text."""
        told = "document.activeElement.id || document.activeElement.textContent.trim()"
        return str(self.ask(told))

    def logged(self) -> list[str]:
        """What the console has said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """URLs that were asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of a fresh profile; skips, loudly, where there is none."""
    binary, program = shutil.which("chromium"), shutil.which("chromedriver")
    selenium = pytest.importorskip("selenium.webdriver", reason=MISSING)
    if binary is None or program is None:
        pytest.skip(MISSING)
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = binary
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(program))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
