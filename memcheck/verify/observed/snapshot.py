"""PyTorch's memory snapshots (``torch.cuda.memory._dump_snapshot``), read without running anything in them.

A snapshot is a pickle of dictionaries, lists, strings and numbers. Any pickle that asks for more, such as a class or a
function, is refused: unpickling it would run code of the file's author.
"""

from __future__ import annotations

import os
import pickle
from typing import Any, BinaryIO, NoReturn

from memcheck.edge.opener import open_file
from memcheck.errors import UsageError
from memcheck.verify.observed.reading import MemoryReading

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
