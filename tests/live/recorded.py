"""A visit as messages: what the TypeScript of the page is built and tested on. ``messages.json`` is the record of it.

``python -m tests.live.recorded`` and ``python -m tests.examples.regenerate``, from the top of the checkout, write it
anew; read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

from memcheck.live.protocol import Session

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).parent / "messages.json"
FAILING = "llama-3.1-8b-four-a100-40gb"
CONFIG = "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\n"
BROKEN = "memcheck: 1\nmodel: [\n"
BESIDE = (
    "memcheck: 1\nextends: base.yaml\nname: beside\n---\nmemcheck: 1\nname: above\nextends: base.yaml\nmodel: gemma-9\n"
)


def requests() -> list[object]:
    """A plan that fails, then changed, broken, several that extend another file, a control moved, and no request."""
    text = (ROOT / "examples" / f"{FAILING}.yaml").read_text(encoding="utf-8")
    shorter = text.replace("sequence_length: 8192", "sequence_length: 1024")
    return [
        {"id": 1, "do": "answer", "path": "plan.yaml", "text": text},
        {"id": 2, "do": "answer", "path": "plan.yaml", "text": shorter, "since": 1},
        {"id": 3, "do": "answer", "path": "plan.yaml", "text": BROKEN, "since": 2},
        {
            "id": 4,
            "do": "answer",
            "path": "two.yaml",
            "text": BESIDE,
            "files": {"base.yaml": text},
            "document": 1,
            "since": 3,
        },
        {"id": 5, "do": "set", "path": "plan.yaml", "changes": {"parallelism.tensor": 4}, "document": 0, "since": 2},
        {"id": 6, "do": "more"},
        {"id": 7, "do": "choices", "keys": ["training.loss"]},
        {"id": 8, "do": "compare", "gpus": ["h200", "b200"]},
        {"id": 9, "do": "sweep", "values": {"training.micro_batch_size": [1, 2], "parallelism.tensor": [1, 2, 4]}},
        {"id": 10, "do": "export", "format": "deepspeed"},
        {"id": 11, "do": "import", "path": "train.yml", "text": CONFIG},
        {"id": 12, "do": "anwser"},
    ]


def visit() -> list[dict[str, object]]:
    """Every request with its replies, in one visit."""
    session = Session()
    told = [{"request": each, "replies": list(session.handle(each))} for each in requests()]
    for each in told:  # how often a search says how far it is depends on the machine
        each["replies"] = [reply for reply in each["replies"] if reply["step"] not in ("searching", "done")]  # type: ignore[attr-defined]
    return told


def written() -> str:
    """The record as text, with a message per line."""
    exchanges = []
    for each in visit():
        replies = ",\n".join(json.dumps(reply, ensure_ascii=False) for reply in each["replies"])  # type: ignore[attr-defined]
        exchanges.append(f'{{"request": {json.dumps(each["request"], ensure_ascii=False)}, "replies": [\n{replies}]}}')
    return "[\n" + ",\n".join(exchanges) + "\n]\n"


def regenerate() -> None:
    """Write the record."""
    RECORD.write_text(written(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    regenerate()
