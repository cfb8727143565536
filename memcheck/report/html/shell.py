"""A page around any body: one file that loads nothing, runs nothing, and reads well on paper and on a phone."""

from __future__ import annotations

import base64
import hashlib
import os

from memcheck.report.html.escape import Html, text
from memcheck.report.html.palette import stylesheet


def page(title: str, body: Html, *, version: str, styles: str = "") -> str:
    """A complete document.

    ``title`` is plain text, ``body`` is HTML that stands inside ``<main>`` and begins with its ``<h1>``, ``styles`` is
    CSS in addition to that of every page. The security policy allows this style sheet alone: markup that slipped
    through could neither run nor load. Nor does a ``style`` attribute work: bars and cells are SVG, coloured by class.
    """
    sheet = stylesheet() + base_styles() + styles
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="memcheck {text(version)}">\n'
        f"<title>{text(title)}</title>\n<style>{sheet}</style>\n</head>\n<body>\n"
        f'<main>\n{body}\n</main>\n<footer class="foot"><p>Predicted by memcheck {text(version)} from plans alone: '
        "no GPU, no run. 1 GiB is 2<sup>30</sup> bytes.</p></footer>\n</body>\n</html>\n"
    )


def base_styles() -> str:
    """The style sheet of every page, without the line breaks and indents of its source."""
    with open(os.path.join(os.path.dirname(__file__), "style.css"), encoding="utf-8") as file:
        return "\n".join(line.strip() for line in file if line.strip()) + "\n"
