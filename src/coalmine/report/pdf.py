"""The report as a PDF file, printed by a browser that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from coalmine.errors import InputError
from coalmine.files import write_whole

_BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
_DRAWING_TIME = 20_000  # milliseconds of the page's own clock, which runs ahead while nothing happens
_PATIENCE = 120  # seconds


def write_pdf(page: Path, path: Path) -> Path:
    """Print an HTML file and return the path of the PDF file.

    Args:
        page: The HTML file.
        path: The PDF file.

    Raises:
        InputError: If neither Chromium nor Chrome is installed, or it prints nothing.
    """
    browser = next((program for name in _BROWSERS if (program := shutil.which(name)) is not None), None)
    if browser is None:
        raise InputError(
            "--pdf needs Chromium or Chrome, and neither was found: install one, or print report.html from a browser"
        )
    return write_whole(path, lambda temporary: _print(browser, page, temporary))


def _print(browser: str, page: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless=new",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-pdf-header-footer",
            "--window-size=1280,900",  # figures are drawn as wide as a desktop shows them, and shrunk to the paper
            # Chromium refuses its sandbox to root; the page runs only its own two scripts, whose hashes it states.
            *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
            f"--user-data-dir={profile}",
            f"--virtual-time-budget={_DRAWING_TIME}",
            f"--print-to-pdf={path.resolve()}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(f"{browser} did not print the report within {_PATIENCE} seconds") from None
    if not path.is_file() or not path.read_bytes().startswith(b"%PDF"):
        reason = " ".join(done.stderr.split())[-200:]
        raise InputError(f"{browser} did not print the report (exit code {done.returncode}): {reason}")
