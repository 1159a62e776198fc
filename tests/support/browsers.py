"""A real Chromium without a network, for pages; tests skip where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # for root, in containers
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
)


class Browser:
    """A page in a browser, and what was asked of the network."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, path: Path, width: int = 1280, theme: str = "light", scripts: bool = True) -> None:
        """Shows a file. theme: what the system prefers."""
        self.resize(width)
        preferred = [{"name": "prefers-color-scheme", "value": theme}]
        self._tell("Emulation.setEmulatedMedia", features=preferred)
        self._tell("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._driver.get("about:blank")
        self._driver.get(path.as_uri())

    def allow_scripts(self) -> None:
        """Lets scripts run again, in the page as it is."""
        self._tell("Emulation.setScriptExecutionDisabled", value=False)

    def resize(self, width: int) -> None:
        """Gives the page so many pixels."""
        self._tell("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns; it may wait for promises."""
        value, error = self._driver.execute_async_script(
            f"""const done = arguments[arguments.length - 1];
                (async () => {{ {script} }})()
                  .then((value) => done([value, null]), (error) => done([null, `${{error}}`]))""",
            *arguments,
        )
        assert error is None, error
        return value

    def press(self, *keys: str) -> None:
        """Presses keys where the focus is, by their names in selenium."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self._driver).send_keys(*(getattr(Keys, key) for key in keys)).perform()

    def errors(self) -> list[str]:
        """Lines of the console, and requests that left the machine's files, since the last call."""
        said = [line["message"] for line in self._driver.get_log("browser")]
        events = [json.loads(line["message"])["message"] for line in self._driver.get_log("performance")]
        asked = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
        return said + [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]

    def picture(self) -> bytes:
        """A PNG of what is seen."""
        return bytes(self._driver.get_screenshot_as_png())

    def _tell(self, command: str, **values: Any) -> None:
        self._driver.execute_cdp_cmd(command, values)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test where selenium, Chromium or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for switch in _SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
