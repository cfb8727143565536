"""Writes the golden files of the rules anew: ``python -m tests.report.regenerate``, from the top of the checkout.

Where a rule points is kept apart, in ``golden/places.json``. New rules are added to it; a place that has moved is
reported and left as it was: whoever means it changes that line by hand.
"""

from __future__ import annotations

import json
import sys

from memcheck.report.html import render as render_html
from tests.golden import joined
from tests.report.forwarded import forwarded
from tests.report.rule_reports import CODES, GOLDEN, PLACES, golden, places, rendered

HTML = GOLDEN / "report.html"
"""The page of hand-made results, which moves with neither rules nor engine."""


def main() -> int:
    """One file per rule, and nothing else; 1 if a finding has moved."""
    files = {golden(code): joined(rendered(code)) for code in CODES}
    files[HTML] = render_html(forwarded())
    written = {PLACES, *files}
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            sys.stdout.write(f"wrote {path.relative_to(GOLDEN)}\n")
    for path in set(GOLDEN.iterdir()) - written:
        path.unlink()
        sys.stdout.write(f"removed {path.relative_to(GOLDEN)}\n")
    return write_places()


def write_places() -> int:
    """Add the places of new rules; say which known ones differ."""
    known = json.loads(PLACES.read_text(encoding="utf-8")) if PLACES.exists() else {}
    moved = 0
    for code in CODES:
        now = places(code)
        if code not in known and now:
            known[code] = now
        elif known.get(code) != now:
            moved = 1
            sys.stdout.write(f"{code} has moved: {known.get(code)} in places.json, now {now}\n")
    kept = {code: known[code] for code in CODES if code in known}
    PLACES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")
    return moved


if __name__ == "__main__":
    sys.exit(main())
