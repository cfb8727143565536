"""Writes what the rules say anew: ``python -m tests.report.regenerate``, from the top of the checkout.

A finding's place is kept by hand: that of a new rule is added, one that has moved is reported and left as it was.
Whoever means it changes that line of ``golden/findings.txt``.
"""

from __future__ import annotations

import sys

from memcheck.report.html import render as render_html
from tests.golden import joined
from tests.report.forwarded import forwarded
from tests.report.rule_reports import FINDINGS, GOLDEN, SHOWN, as_rows, as_text, golden, rendered, table

HTML = GOLDEN / "report.html"
"""The page of hand-made results, which moves with neither rules nor engine."""


def main() -> int:
    """The table of findings, one file per rule of :data:`SHOWN`, the page, and nothing else; 1 if a finding moved."""
    rows, moved = table(), 0
    known = as_rows(FINDINGS.read_text(encoding="utf-8")) if FINDINGS.exists() else {}
    for name, lines in rows.items():
        before = known.get(name, lines)[0]
        if before != lines[0]:
            moved = 1
            sys.stdout.write(f"{name} has moved: {before} in findings.txt, now {lines[0]}\n")
            lines[0] = before
    files = {FINDINGS: as_text(rows), HTML: render_html(forwarded())}
    files |= {golden(code): joined(rendered(code)) for code in SHOWN}
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            sys.stdout.write(f"wrote {path.relative_to(GOLDEN)}\n")
    for path in set(GOLDEN.iterdir()) - set(files):
        path.unlink()
        sys.stdout.write(f"removed {path.relative_to(GOLDEN)}\n")
    return moved


if __name__ == "__main__":
    sys.exit(main())
