"""Writes the golden files anew: ``python -m tests.examples.regenerate``, from the top of the checkout.

Figures move when the engine does. Read the diff before it is committed; verdicts are held by ``test_verdicts.py``.
"""

from __future__ import annotations

import sys

from tests.examples.rendered import GOLDEN, NAMES, golden, rendered
from tests.golden import joined
from tests.live.recorded import regenerate as regenerate_messages
from tests.report.regenerate import main as regenerate_rules


def main() -> int:
    """One file per example, and nothing else; then the same for the rules' examples."""
    GOLDEN.mkdir(exist_ok=True)
    written = set()
    for name in NAMES:
        path, content = golden(name), joined(rendered(name))
        written.add(path)
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8", newline="\n")
            sys.stdout.write(f"wrote {path.name}\n")
    for path in set(GOLDEN.iterdir()) - written:
        path.unlink()
        sys.stdout.write(f"removed {path.name}\n")
    regenerate_messages()
    return regenerate_rules()


if __name__ == "__main__":
    sys.exit(main())
