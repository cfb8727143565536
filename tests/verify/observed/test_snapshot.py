"""PyTorch's memory snapshots, and pickles that pretend to be one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from memcheck.errors import UsageError
from memcheck.verify.observed.readings import is_pickle, read_snapshot

MIB = 2**20


def block(size: int, state: str = "active_allocated") -> dict[str, Any]:
    """A block of a segment, as the allocator reports it."""
    return {"address": 0, "size": size, "requested_size": size, "state": state, "frames": []}


def segment(blocks: list[dict[str, Any]], device: int = 0) -> dict[str, Any]:
    """A segment."""
    total = sum(b["size"] for b in blocks)
    return {"device": device, "address": 0, "total_size": total, "segment_type": "large", "stream": 0, "blocks": blocks}


def event(action: str, size: int) -> dict[str, Any]:
    """An entry of the trace."""
    return {"action": action, "addr": 1, "size": size, "stream": 0, "time_us": 0, "frames": []}


def save(path: Path, found: object) -> str:
    """Write a pickle."""
    path.write_bytes(pickle.dumps(found))
    return str(path)


def test_peaks_between_events(tmp_path: Path) -> None:
    """The end is known, so the peak is found by going back; requests are rounded to blocks."""
    snapshot = {
        "segments": [segment([block(4 * MIB), block(16 * MIB, "inactive")])],
        "device_traces": [
            [
                event("segment_alloc", 20 * MIB),
                event("alloc", 4 * MIB - 100),
                event("alloc", 10 * MIB),
                event("free_requested", 10 * MIB),
                event("free_completed", 10 * MIB),
                event("segment_alloc", 30 * MIB),
                event("alloc", 25 * MIB),
                event("free_requested", 25 * MIB),
                event("free_completed", 25 * MIB),
                event("segment_free", 30 * MIB),
            ]
        ],
    }
    path = save(tmp_path / "s.pickle", snapshot)
    assert is_pickle(path)
    found = {r.metric: r.bytes for r in read_snapshot(path)}
    assert found == {"allocated": 29 * MIB, "reserved": 50 * MIB}


def test_without_history_the_end_is_all_there_is(tmp_path: Path) -> None:
    """Nothing was recorded, so the blocks that live count; the fullest device decides."""
    snapshot = {
        "segments": [segment([block(2 * MIB)]), segment([block(6 * MIB), block(MIB, "inactive")], device=1)],
        "device_traces": [[], []],
    }
    found = {r.metric: r.bytes for r in read_snapshot(save(tmp_path / "s.pickle", snapshot))}
    assert found == {"allocated": 6 * MIB, "reserved": 7 * MIB}


class Attack:
    """A pickle that runs a command when it is read by an unpickler that builds whatever it is asked for."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: {"segments": [a]}, lambda a: (1, [a])])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, protocol: int, wrap: Any) -> None:
    """No name is ever looked up, whatever it is: the file is refused and nothing runs."""
    mark = tmp_path / "mark"
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps(wrap(Attack(str(mark))), protocol=protocol))
    with pytest.raises(UsageError, match="plain data only"):
        read_snapshot(str(path))
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pid\n.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80\x04N.",
        b"\x80\x04}.",
        b"\x80",
        b"",
        b"not a pickle",
    ],
)
def test_what_is_no_snapshot(tmp_path: Path, data: bytes) -> None:
    """Global, stack-global, extension and persistent opcodes, broken and empty files: one error each, no code."""
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    with pytest.raises(UsageError):
        read_snapshot(str(path))


@pytest.mark.parametrize(
    "segment",
    [{"device": 0}, *[{"total_size": size, "blocks": []} for size in (2**9000, float("inf"), "8")]],
    ids=["no blocks", "huge", "inf", "text"],
)
def test_a_snapshot_of_an_unknown_form(tmp_path: Path, segment: dict[str, Any]) -> None:
    """Segments without blocks, or of sizes that no memory has, are reported, not crashed on."""
    with pytest.raises(UsageError, match="unknown form"):
        read_snapshot(save(tmp_path / "s.pickle", {"segments": [segment], "device_traces": []}))
