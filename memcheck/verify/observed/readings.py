"""Memory figures of a run: stated by the user, from log lines of training frameworks, or from a snapshot of PyTorch.

Each pattern of a log line names the code that prints it, the quantity and the unit it means by "GB". A snapshot
(``torch.cuda.memory._dump_snapshot``) is a pickle of dictionaries, lists, strings and numbers. Any pickle that asks for
more, such as a class or a function, is refused: unpickling it would run code of the file's author.
"""

from __future__ import annotations

import os
import pickle
import re
from typing import Any, BinaryIO, NoReturn

from memcheck.edge.opener import open_file
from memcheck.errors import UsageError
from memcheck.record import Record

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


LARGEST_FILE = 4 * 2**30
LARGEST_PEAK = 2**60
BLOCK = 512
LIVE = "active_allocated"


class _PlainData(pickle.Unpickler):
    """Builds containers, strings and numbers, and nothing else."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Never: this is where a pickle reaches code."""
        raise UsageError(
            f"the snapshot asks for {module_name}.{global_name}; a memory snapshot holds plain data only",
            "it was not read: a pickle can run code",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        """Never: plain data refers to nothing outside."""
        raise UsageError("the snapshot refers to data outside of it", "it was not read: a pickle can run code")


def is_pickle(path: str) -> bool:
    """Whether a file starts as a pickle does."""
    with open_file(path) as file:
        return file.read(2)[:1] == b"\x80"


def read_snapshot(path: str) -> list[MemoryReading]:
    """Peaks of allocated and reserved bytes over what the snapshot recorded.

    Raises:
        UsageError: too large, no snapshot, or a pickle of anything but plain data.
    """
    if os.path.getsize(path) > LARGEST_FILE:
        raise UsageError(f"{path} is larger than {LARGEST_FILE:,} bytes")
    with open_file(path) as file:
        found = load_plain(file, path)
    segments = found.get("segments") if isinstance(found, dict) else None
    if not isinstance(segments, list):
        raise UsageError(f"{path} is no memory snapshot of PyTorch", "write one: torch.cuda.memory._dump_snapshot()")
    try:
        peaks = _peaks(segments, found.get("device_traces") or [], path)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(f"{path}: a snapshot of an unknown form: {error!r}") from error
    if any(peak.bytes >= LARGEST_PEAK for peak in peaks):
        raise UsageError(f"{path}: a snapshot of an unknown form: sizes that no memory has")
    return peaks


def load_plain(file: BinaryIO, path: str) -> Any:
    """Unpickle plain data.

    Raises:
        UsageError: anything else.
    """
    try:
        return _PlainData(file).load()
    except UsageError:
        raise
    except Exception as error:  # a broken pickle fails in many ways
        raise UsageError(f"{path} cannot be read as a pickle: {error}") from error


def _peaks(segments: list[Any], traces: list[Any], path: str) -> list[MemoryReading]:
    """The state at the end is known; going back through the events gives every state before it."""
    devices = sorted({segment.get("device", 0) for segment in segments})
    best = [0, 0]
    for device in devices:
        mine = [s for s in segments if s.get("device", 0) == device]
        allocated = sum(b["size"] for s in mine for b in s["blocks"] if b["state"] == LIVE)
        reserved = sum(s["total_size"] for s in mine)
        events = traces[device] if device < len(traces) else []
        best = [max(a, b) for a, b in zip(best, _walk_back(events, allocated, reserved), strict=True)]
    source = f"{os.path.basename(path)}, a memory snapshot"
    return [MemoryReading("allocated", best[0], source), MemoryReading("reserved", best[1], source)]


def _walk_back(events: list[Any], allocated: int, reserved: int) -> tuple[int, int]:
    actions = {event["action"] for event in events}
    # max_memory_allocated goes down when a block is freed by the program, which is the request
    freed = "free_requested" if "free_requested" in actions else "free"
    high = [allocated, reserved]
    for event in reversed(events):
        action, size = event["action"], event.get("size", 0)
        if action == "alloc":
            allocated -= _block(size)
        elif action == freed:
            allocated += _block(size)
        elif action in ("segment_alloc", "segment_map"):
            reserved -= size
        elif action in ("segment_free", "segment_unmap"):
            reserved += size
        high = [max(high[0], allocated), max(high[1], reserved)]
    return high[0], high[1]


def _block(size: int) -> int:
    """Events carry the requested size."""
    return -(-size // BLOCK) * BLOCK
