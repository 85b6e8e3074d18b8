"""A report as PDF: printed by a Chromium that is installed, on A4, as its print style says."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from kohort.errors import ConfigError, ResourceError
from kohort.files import write_atomic

__all__ = ["find_browser", "pdf_path", "print_pdf"]

_NAMES: Final = (
    "chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge", "msedge",
)  # fmt: skip
_QUIET: Final = (
    "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--no-pdf-header-footer", "--disable-quic",
)  # fmt: skip
_SECONDS: Final = 120


def pdf_path(page: Path) -> Path:
    """Where the PDF of a page goes: beside it.

    Args:
        page: The path of the HTML page.

    Returns:
        The same path with the suffix `.pdf`.
    """
    return page.with_suffix(".pdf")


def find_browser() -> str:
    """The path of a Chromium.

    Returns:
        The program that KOHORT_BROWSER names, or the first one that is installed.

    Raises:
        ConfigError: None is installed.
    """
    asked = os.environ.get("KOHORT_BROWSER")
    found = [shutil.which(name) for name in ((asked,) if asked else _NAMES)]
    for path in found:
        if path:
            return path
    raise ConfigError(
        "a PDF is printed by Chromium, and none is installed" if not asked else "KOHORT_BROWSER names no program",
        hint="Install Chromium or Chrome (Debian: apt install chromium), or open the page and print it",
    )


def print_pdf(page: Path, out: Path, *, browser: str) -> None:
    """Print a page.

    Args:
        page: The HTML file; it loads nothing else.
        out: The PDF; written whole or not at all.
        browser: What `find_browser` returned.

    Raises:
        ResourceError: The browser failed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="kohort-print-", ignore_cleanup_errors=True) as folder:
        made = Path(folder) / "page.pdf"
        as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command = [browser, *_QUIET, *as_root, f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}"]
        try:
            subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True, timeout=_SECONDS)
            content = made.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise ResourceError(
                f"{Path(browser).name} could not print {page.name}", hint="Open the page in a browser and print it"
            ) from error
    write_atomic(out, content)
