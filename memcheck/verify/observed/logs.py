"""Memory figures in the log lines of training frameworks.

Each pattern names the code that prints such a line, the quantity and the unit it means by "GB".
"""

from __future__ import annotations

import re

from memcheck.record import Record
from memcheck.verify.observed.reading import MemoryReading

GIB, MIB = 2**30, 2**20
NUMBER = r"([0-9]{1,15}(?![0-9])(?:\.[0-9]+)?)"
"""More digits are no figure of any memory."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Pattern(Record):
    """One kind of line."""

    printed_by: str
    expression: re.Pattern[str]
    metric: str
    unit: int


def _pattern(printed_by: str, expression: str, metric: str, unit: int) -> Pattern:
    return Pattern(printed_by=printed_by, expression=re.compile(expression), metric=metric, unit=unit)


PATTERNS = (
    # torchtitan components/metrics.py: max_reserved_gib
    _pattern("torchtitan", rf"\bmemory: +{NUMBER}GiB\(", "reserved", GIB),
    _pattern("torchtitan", rf"memory/max_reserved\(GiB\)\W+{NUMBER}", "reserved", GIB),
    # Megatron-LM megatron/training/utils.py, report_memory: divided by 1024 * 1024
    _pattern("Megatron", rf"\| max allocated: {NUMBER}", "allocated", MIB),
    _pattern("Megatron", rf"\| max reserved: {NUMBER}", "reserved", MIB),
    # DeepSpeed runtime/utils.py, see_memory_usage: divided by 1024^3
    _pattern("DeepSpeed", rf"\bMax_MA {NUMBER} GB", "allocated", GIB),
    _pattern("DeepSpeed", rf"\bMax_CA {NUMBER} GB", "reserved", GIB),
    # Axolotl utils/bench.py and its callbacks
    _pattern("Axolotl", rf"memory/max_(?:mem|memory)_allocated(?:\(gib\))?\W+{NUMBER}", "allocated", GIB),
    _pattern("Axolotl", rf"memory/device_(?:mem|memory)_reserved(?:\(gib\))?\W+{NUMBER}", "reserved", GIB),
    # nvidia-smi's table
    _pattern("nvidia-smi", rf"\| +{NUMBER}MiB +/ +[0-9]+MiB", "device", MIB),
)

OUT_OF_MEMORY = re.compile(
    rf"Tried to allocate {NUMBER} (GiB|MiB).*?{NUMBER} (GiB|MiB) is allocated by PyTorch", re.DOTALL
)
"""c10/cuda/CUDACachingAllocator.cpp. What was live plus what was asked for is a lower bound of the peak."""

TRAINER = re.compile(
    r"\b(before_init_mem_gpu|(?:init|train)_mem_gpu_(?:alloc|peaked)_delta)'?\s*[=:]\s*([0-9]{1,18}(?![0-9]))(MB)?"
)
"""transformers trainer_utils.py, TrainerMemoryTracker; ``log_metrics`` prints MiB and calls them MB, dictionaries hold
bytes."""


def read_log(text: str, source: str) -> list[MemoryReading]:
    """The highest figure of each quantity in a log; those of a log without any: none."""
    text = ANSI.sub("", text)
    found: dict[str, MemoryReading] = {}

    def keep(reading: MemoryReading) -> None:
        known = found.get(reading.metric)
        if known is None or reading.bytes > known.bytes:
            found[reading.metric] = reading

    for pattern in PATTERNS:
        for match in pattern.expression.finditer(text):
            count = int(float(match[1]) * pattern.unit)
            keep(MemoryReading(pattern.metric, count, f"{source}, printed by {pattern.printed_by}"))
    trainer = _trainer(text, source)
    if trainer is not None:
        keep(trainer)
    for match in OUT_OF_MEMORY.finditer(text):
        asked, held = (float(match[i]) * {"GiB": GIB, "MiB": MIB}[match[i + 1]] for i in (1, 3))
        keep(MemoryReading("allocated", int(asked + held), f"{source}, an out-of-memory error", at_least=True))
    return list(found.values())


def _trainer(text: str, source: str) -> MemoryReading | None:
    """The Trainer's report: before it was made + by making it + by training + the peak beyond what was left."""
    parts = {m[1]: int(m[2]) * (MIB if m[3] else 1) for m in TRAINER.finditer(text)}
    if "train_mem_gpu_peaked_delta" not in parts:
        return None
    return MemoryReading("allocated", sum(parts.values()), f"{source}, printed by transformers.Trainer")
