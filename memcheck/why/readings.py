"""Memory figures of a run: stated by the user, from log lines of training frameworks, or from a snapshot of PyTorch.

Each pattern of a log line names the code that prints it, the quantity and the unit it means by "GB". Snapshots are
read by ``memcheck/why/snapshots.py``.
"""

from __future__ import annotations

import os
import re

from memcheck.edge.screen import one_line
from memcheck.errors import UsageError
from memcheck.record import Record
from memcheck.why.evidence import ALLOCATED, DEVICE, TRIED
from memcheck.why.log import read_log as read_messages
from memcheck.why.snapshots import read_snapshot as devices_in

METRICS = ("allocated", "reserved", "device")
UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
SIZE = re.compile(r"([0-9]{1,15}(?:[.,][0-9]+)?)\s*([kmgt]?i?b)", re.IGNORECASE)


class MemoryReading(Record):
    """One figure."""

    metric: str
    """``allocated`` | ``reserved`` | ``device`` | ``any``: which quantity of the estimate it is comparable with."""
    bytes: int
    source: str
    """Where it was read, in words."""
    at_least: bool = False
    """The run asked for more than it got: an out-of-memory message."""


def parse_size(text: str) -> MemoryReading | None:
    """``61.3GiB`` or ``reserved=61.3GiB``; None when the text is no size.

    Raises:
        UsageError: a number without a unit, or an unknown metric.
    """
    metric, equals, rest = text.partition("=")
    if equals and metric.strip().lower() not in METRICS:
        return None
    size = (rest if equals else text).strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", size):
        raise UsageError(f"{text!r} has no unit", "write 61.3GiB (2^30 bytes) or 65.8GB (10^9 bytes)")
    match = SIZE.fullmatch(size)
    if match is None:
        return None
    count = float(match[1].replace(",", "."))
    name = metric.strip().lower() if equals else "any"
    return MemoryReading(name, int(count * UNITS[match[2].lower()]), "the command line")


GIB, MIB = 2**30, 2**20
NUMBER = r"([0-9]{1,15}(?![0-9])(?:\.[0-9]+)?)"
"""More digits are no figure of any memory."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class LogPattern(Record):
    """One kind of line."""

    printed_by: str
    expression: re.Pattern[str]
    metric: str
    unit: int


def _pattern(printed_by: str, expression: str, metric: str, unit: int) -> LogPattern:
    return LogPattern(printed_by=printed_by, expression=re.compile(expression), metric=metric, unit=unit)


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
    for message in read_messages(text.encode("utf-8", "replace")).messages:
        held, tried = message.figures.get(ALLOCATED), message.figures.get(TRIED)
        if held is not None and message.kind == DEVICE:
            place = f"{source}, an out-of-memory error" + (
                "" if message.gpu_index is None else f" of GPU {message.gpu_index}"
            )
            asked = tried.bytes if tried is not None else 0
            keep(MemoryReading(metric="allocated", bytes=held.bytes + asked, source=place, at_least=True))
    return list(found.values())


LEAST_READINGS = 8


def growth(text: str) -> int:
    """Bytes by which memory rises from the first quarter of a log's readings to the last; 0: it does not.

    It rises if the lowest reading of the last quarter is above the highest of the first: steps differ, also over ranks.
    """
    text = ANSI.sub("", text)
    found = 0
    for pattern in PATTERNS:
        counts = [int(float(match[1]) * pattern.unit) for match in pattern.expression.finditer(text)]
        quarter = len(counts) // 4
        if len(counts) >= LEAST_READINGS:
            found = max(found, min(counts[-quarter:]) - max(counts[:quarter]))
    return found


def _trainer(text: str, source: str) -> MemoryReading | None:
    """The Trainer's report: before it was made + by making it + by training + the peak beyond what was left."""
    parts = {m[1]: int(m[2]) * (MIB if m[3] else 1) for m in TRAINER.finditer(text)}
    if "train_mem_gpu_peaked_delta" not in parts:
        return None
    return MemoryReading("allocated", sum(parts.values()), f"{source}, printed by transformers.Trainer")


def read_snapshot(path: str) -> list[MemoryReading]:
    """Peaks of allocated and reserved bytes of the fullest device of a snapshot.

    They are lower bounds where the history is not complete, and where an allocation failed: its size is added then.

    Raises:
        UsageError: no snapshot, or a file that cannot be read safely.
        OSError: the file cannot be opened.
    """
    devices = devices_in(path)
    if not devices:
        raise UsageError(f"{one_line(path)} is a snapshot without memory in use or events", "write it at the peak")
    fullest = max(devices, key=lambda device: device.peak_allocated_bytes)
    source = f"{one_line(os.path.basename(path))}, a memory snapshot, device {fullest.device}"
    if not fullest.events:
        source += ", without history: what was in use when it was written"
    elif not fullest.complete:
        source += ", whose history begins late"
    allocated, least = fullest.peak_allocated_bytes, not fullest.complete
    if fullest.failed:
        source += ", an allocation that failed included"
        allocated = max(allocated, fullest.live_bytes + fullest.failed[-1].requested_bytes)
        least = True
    found = [MemoryReading("allocated", allocated, source, at_least=least)]
    if fullest.peak_reserved_bytes is not None:
        found.append(MemoryReading("reserved", fullest.peak_reserved_bytes, source, at_least=least))
    return found
