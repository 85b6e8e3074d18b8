"""The app bundle Flower insists on: it holds no code, and its one purpose is a hash.

Sites compare that hash before they look at anything else (`kohort.transport.flower.runner`).
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from importlib.metadata import version

__all__ = ["bundle", "bundle_hash"]

_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def bundle() -> bytes:
    """The app bundle of the installed kohort: the same bytes wherever the same version is installed.

    Stored without compression, whose bytes differ from one zlib to the next.
    """
    own = version("kohort")
    project = (
        f'[project]\nname = "kohort-site"\nversion = "{own}"\ndescription = "Names the kohort that sites run."\n'
        'license = "Apache-2.0"\ndependencies = []\n\n[tool.flwr.app]\npublisher = "kohort"\n\n'
        '[tool.flwr.app.components]\nserverapp = "kohort_site:app"\nclientapp = "kohort_site:app"\n\n'
        "[tool.flwr.app.config]\n"
    ).encode()
    module = b'raise ImportError("This bundle holds no code: a kohort site runs the kohort installed there.")\n'
    files = {"pyproject.toml": project, "kohort_site.py": module}
    listed = [f"{name},{hashlib.sha256(text).hexdigest()},{len(text) * 8}" for name, text in files.items()]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, text in {**files, ".info/CONTENT": "\n".join(listed).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), text)
    return made.getvalue()


def bundle_hash() -> str:
    """The hash of the only bundle a site of this kohort accepts."""
    return hashlib.sha256(bundle()).hexdigest()
