"""A plan out of a log: the command that started the run, read as ``import`` reads it, and the model's name.

Drafted values are shown as such, with their lines. What no line says is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from memcheck.catalog.names import UnknownNameError, find_model
from memcheck.configs.documents import load_plans
from memcheck.configs.types import COMMAND
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.verify.subject import changed
from memcheck.why.answer import Drafted

HEAD = 2**19
"""Bytes at the start of a log in which its command is looked for."""
LONGEST = 8192
STARTS = re.compile(
    rb"(?:^|[\s=+$'\"])((?:torchrun|deepspeed|accelerate launch|swift (?:sft|pt|rlhf)|llamafactory-cli train|"
    rb"vllm serve|python[0-9.]{0,4} -m (?:vllm|sglang|torch\.distributed|axolotl|megatron)|"
    rb"(?:/[^\s]{1,200}/)?python[0-9.]{0,5} (?:-u )?[^\s]{1,200}\.py) [^\n]{1,8000})"
)
MODEL = re.compile(
    r"(?:model_name_or_path|--model|model_path|\bmodel|base_model|pretrained_model_name_or_path)"
    r"['\"]?\s{0,3}[=: ]\s{0,3}"
    r"['\"]?([\w./-]{3,120})"
)
HUB = re.compile(
    r"\b((?:meta-llama|Qwen|mistralai|google|deepseek-ai|microsoft|bigscience|tiiuae|EleutherAI|facebook|THUDM)"
    r"/[\w.-]{2,80})"
)


class DraftedPlan(Record):
    """What a log says of a plan."""

    document: Document | None = None
    values: tuple[Drafted, ...] = ()
    missing: tuple[str, ...] = ()
    model: str | None = None
    """A name of the catalog, where no command could be read."""


def draft(
    data: bytes, changes: dict[str, object], source: str, assumed: Mapping[str, object] | None = None
) -> DraftedPlan:
    """The plan of the run that wrote a log, as far as its lines say; ``assumed``: values that none of them says."""
    head = data[:HEAD]
    model = _model(head)
    match = next((m for m in STARTS.finditer(head) if b"--" in m[1] or b"=" in m[1]), None)
    if match is None:
        return DraftedPlan(model=model)
    # The readers of configs take time to load, which a log without a command does not need.

    assumed = assumed or {}
    line = head.count(b"\n", 0, match.start(1)) + 1
    text = match[1][:LONGEST]
    end = match.end(1)
    while text.rstrip().endswith(b"\\") and end < len(head):
        following = head.find(b"\n", end + 1)
        following = len(head) if following < 0 else following
        text = text.rstrip()[:-1] + head[end + 1 : following]
        end = following
    hardware: dict[str, object] = {
        key.removeprefix("hardware."): item for key, item in changes.items() if key.startswith("hardware.")
    }
    if assumed:
        hardware["settings"] = dict(assumed)
    documents = load_plans(COMMAND, text.strip(b"'\"") + b"\n", hardware=hardware)
    if not documents or not isinstance(documents[0].values, dict):
        return DraftedPlan(model=model)
    document = changed(documents[0]._replace(path=source), changes)
    rows = _flat(documents[0].values)
    values = tuple(Drafted(key, item, line) for key, item in rows if key not in assumed and key not in changes)
    said = tuple(f"{key} (assumed: {item})" for key, item in assumed.items())
    return DraftedPlan(document=document, values=values, missing=(*said, *_missing(document)), model=model)


def _flat(values: object, prefix: str = "") -> list[tuple[str, object]]:
    if not isinstance(values, dict):
        return [(prefix, values)]
    return [
        row
        for key, item in values.items()
        if key not in ("memcheck", "name", "source")
        for row in _flat(item, f"{prefix}.{key}".strip("."))
    ]


def _missing(document: Document) -> tuple[str, ...]:
    values = document.values if isinstance(document.values, dict) else {}
    hardware = values.get("hardware")
    said = []
    if not isinstance(hardware, dict) or "gpu" not in hardware:
        said.append("hardware.gpu (--gpu NAME)")
    if "model" not in values:
        said.append("model (--model NAME)")
    return tuple(said)


def _model(head: bytes) -> str | None:
    """The first name in a log that the catalog knows."""
    text = head.decode("utf-8", "replace")
    tried = 0
    for expression in (MODEL, HUB):
        for match in expression.finditer(text):
            name = match[1].rstrip("./").removeprefix("/")
            tried += 1
            if tried > 40:
                return None
            for each in (name, name.rpartition("/")[2]):
                with suppress(UnknownNameError):
                    return find_model(each).name
    return None
