"""A visit as messages: what the TypeScript of the page is built and tested on. ``messages.json`` is the record of it.

``python -m tests.live.recorded``, from the top of the checkout, writes it anew; read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

from memcheck.live.protocol import Session

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).parent / "messages.json"
FAILING = "llama-3.1-8b-four-a100-40gb"
BROKEN = "memcheck: 1\nmodel: [\n"
BESIDE = (
    "memcheck: 1\nextends: base.yaml\nname: beside\n---\nmemcheck: 1\nname: above\nextends: base.yaml\nmodel: gemma-9\n"
)


def requests() -> list[object]:
    """A plan that fails; it changed, then broken, then several that extend another file; and no request."""
    text = (ROOT / "examples" / f"{FAILING}.yaml").read_text(encoding="utf-8")
    shorter = text.replace("sequence_length: 8192", "sequence_length: 1024")
    return [
        {"id": 1, "do": "answer", "path": "plan.yaml", "text": text},
        {"id": 2, "do": "answer", "path": "plan.yaml", "text": shorter, "since": 1},
        {"id": 3, "do": "answer", "path": "plan.yaml", "text": BROKEN, "since": 2},
        {"id": 4, "do": "answer", "path": "two.yaml", "text": BESIDE, "files": {"base.yaml": text}, "document": 1},
        {"id": 5, "do": "anwser"},
    ]


def visit() -> list[dict[str, object]]:
    """Every request with its replies, in one visit."""
    session = Session()
    return [{"request": each, "replies": list(session.handle(each))} for each in requests()]


def written() -> str:
    """The record as text."""
    return json.dumps(visit(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    RECORD.write_text(written(), encoding="utf-8", newline="\n")
