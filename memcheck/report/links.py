"""Where a rule can be read: on the web if the pages are published, else in the installed package."""

from __future__ import annotations

import os

DOCS_URL = "MEMCHECK_DOCS_URL"
"""The environment variable that names the published folder of rule pages (``docs/rules`` of a repository)."""

_WEB = ("https://", "http://")
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")


def docs_folder() -> str:
    """The address of the rules' pages on the web, without a slash at its end; empty where none is configured."""
    base = os.environ.get(DOCS_URL, "").rstrip("/")
    return base if base.startswith(_WEB) and base.isascii() and base.isprintable() and " " not in base else ""


def family_of(code: str) -> str:
    """The name of the page that has a rule: ``MEM1xx`` for ``MEM101``."""
    return f"{code[:-2]}xx"


def published(code: str) -> str:
    """The address of a rule on the web; empty where no address of the pages is configured."""
    base = docs_folder()
    return f"{base}/{family_of(code)}.md#{code.lower()}" if base else ""


def page(code: str) -> str:
    """Where to read about a rule: its published page, else the module whose docstring becomes that page."""
    address = published(code)
    if address:
        return address
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rules")
    prefix = f"{code.lower()}_"
    try:
        found = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(".py")]
    except OSError:  # the package is not a folder
        found = []
    return file_url(os.path.join(folder, found[0])) if found else ""


def file_url(path: str) -> str:
    """An absolute path as a URL that names the machine, since a terminal may show another one's output."""
    host = os.uname().nodename if hasattr(os, "uname") else ""
    path = path.replace(os.sep, "/")
    return f"file://{quoted(host)}{'' if path.startswith('/') else '/'}{quoted(path, ':')}"


def quoted(text: str, safe: str = "") -> str:
    """Percent-encoding for the path of a URL."""
    return "".join(
        char if char in _SAFE or char in safe else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "replace"))
        for char in text
    )
