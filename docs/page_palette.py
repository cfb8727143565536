"""The palette of the reports as a style sheet of the page in ``site/``, which lets its reader choose light or dark."""

from __future__ import annotations

from memcheck.report.html.grid import SHADES
from memcheck.report.html.shell import BACKGROUNDS, BARS, CACHE_OPACITY, LINES, TEXT, Colour, css

OWN = {"edge": Colour("#858e99", "#717b87")}
"""What no report has: the outline of a control, at 3 to 1 against a card and against the page."""
HEADING = "/* Written by `python -m docs.generate` from memcheck/report/html: edit that and run it again. */\n"


def page_palette() -> str:
    """Every colour as ``light-dark()``, so that ``color-scheme`` alone chooses; classes of bars and of a heat map."""
    roles = {**BACKGROUNDS, **TEXT, **BARS, **LINES, **OWN}
    named = "".join(f"  --{css(name)}: light-dark({pair.light}, {pair.dark});\n" for name, pair in roles.items())
    fills = "".join(
        f".c-{css(name)} {{ fill: var(--{css(name)}) }}\n" for name in (*BARS, "good", "warn", "bad", "note")
    )
    shades = "".join(
        f":is(.heat, .legend) .{name} {{ background: light-dark({light}, {dark}) }}\n"
        for name, (light, dark) in SHADES.items()
    )
    cache = f".c-cache {{ fill-opacity: {CACHE_OPACITY} }}\n"
    return f"{HEADING}:root {{\n  color-scheme: light dark;\n{named}}}\n{fills}{cache}{shades}"
