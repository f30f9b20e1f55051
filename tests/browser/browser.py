"""Chromium, driven by Selenium: one page at a time, and whatever it complained about.

Selenium is loaded late: without it the tests skip.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

from phasemeter.lazy import load

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
PATIENCE_S = 110  # below the driver's own two minutes for an answer
PHONE, DESK = (390, 844), (1280, 900)


class Browser:
    """`open` a page, ask it with `ask`, and read `complaints`."""

    def __init__(self, binary: str, driver: str) -> None:
        chrome = load("selenium.webdriver")
        service = load("selenium.webdriver.chrome.service")
        self._profile = tempfile.TemporaryDirectory()
        options = chrome.ChromeOptions()
        options.binary_location = binary
        for flag in (*FLAGS, f"--user-data-dir={self._profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._service = service.Service(driver)
        self.driver = chrome.Chrome(options=options, service=self._service)
        self.driver.set_script_timeout(PATIENCE_S)

    def open(self, page: Path, size: tuple[int, int] = DESK, *, dark: bool = False, media: str = "screen") -> None:
        """Load a page from disk in a window of that size."""
        width, height = size
        told = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", told)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": scheme})
        self.driver.get_log("browser")
        self.driver.get(page.as_uri())

    def ask(self, script: str, *arguments: Any) -> Any:
        """What a script answers in the page."""
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait for two frames: what was scheduled by a change has been drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the page was opened: script errors, refusals of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def serious(self) -> list[str]:
        """axe-core's serious and critical violations."""
        if not self.ask("return typeof window.axe === 'object'"):
            axe = Path(load("axe_core_python").__file__).with_name("axe.min.js")
            self.ask(axe.read_text(encoding="utf-8") + ";window.axe = window.axe || axe;")
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations), (e) => done([{"
            "id: String(e), impact: 'critical', nodes: []}]))"
        )
        return [
            f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in (one["nodes"] or [{"target": ""}])[:3]
        ]

    def screenshot(self, out: Path) -> None:
        """The whole page as PNG."""
        told = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        out.write_bytes(base64.b64decode(told["data"]))

    def quit(self) -> None:
        self.driver.quit()
        self._profile.cleanup()
