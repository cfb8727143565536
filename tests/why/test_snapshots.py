"""Memory snapshots: peaks, the allocation that failed, what was live, and what a lost history leaves unknown."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memcheck.errors import UsageError
from memcheck.verify.replay.allocator import OutOfMemory
from memcheck.why.readings import read_snapshot as memory_readings
from memcheck.why.snapshot_file import snapshot_kind
from memcheck.why.snapshots import DeviceMemory, read_snapshot
from tests.why.written import BACKWARD, FORWARD, KEPT, Recorded, two_devices

MIB = 2**20


def save(path: Path, found: object, protocol: int = pickle.DEFAULT_PROTOCOL) -> str:
    """Write a pickle."""
    path.write_bytes(pickle.dumps(found, protocol=protocol))
    return str(path)


def drawn(seed: int, events: int = 400, **options: Any) -> Recorded:
    """An allocator after random allocations and frees of all sizes."""
    draw = random.Random(seed)  # noqa: S311 - sizes, no secrets
    found = Recorded(**options)
    live: list[int] = []
    for name in range(events):
        if live and draw.random() < 0.45:
            found.drop(live.pop(draw.randrange(len(live))))
        size = round(draw.choice([3e3, 7e5, 3e6, 1.2e7, 9e7]) * draw.uniform(0.3, 1.7))
        found.make(name, size, draw.choice([FORWARD, BACKWARD, KEPT]))
        live.append(name)
        if draw.random() < 0.02:
            found.now = []
            found.release()
    return found


def check(shown: DeviceMemory, truth: Recorded) -> None:
    """The figures that the allocator counted itself."""
    assert shown.allocated_bytes == truth.allocated
    assert abs(shown.peak_allocated_bytes - truth.peak_allocated) <= 512
    assert shown.complete


@pytest.mark.parametrize("layout", ["2.0", "2.1", "2.6", "2.13"])
@pytest.mark.parametrize("seed", range(8))
def test_peaks_of_random_histories(tmp_path: Path, seed: int, layout: str) -> None:
    """Blocks that keep a rest of up to 1 MiB, segments that are given back: what the allocator counted itself."""
    truth = drawn(seed, layout=layout)
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", truth.snapshot()))
    check(shown, truth)
    assert shown.peak_reserved_bytes == truth.peak_reserved
    assert shown.reserved_bytes == truth.reserved


@pytest.mark.parametrize("seed", range(12))
def test_peaks_of_expandable_segments(tmp_path: Path, seed: int) -> None:
    """Pages are mapped and unmapped; a block is as large as its rounded request."""
    truth = drawn(seed, expandable=True)
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", truth.snapshot()))
    check(shown, truth)
    assert shown.expandable


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol(tmp_path: Path, protocol: int) -> None:
    """Pickles of every protocol, two devices in one file."""
    first, second = drawn(1), drawn(2)
    shown = read_snapshot(save(tmp_path / "s.pickle", two_devices(first, second), protocol))
    assert [device.device for device in shown] == [0, 1]
    check(shown[0], first)
    check(shown[1], second)


def test_json_and_the_archive_of_torch_save(tmp_path: Path) -> None:
    """The same snapshot as JSON, and as torch.save writes a dictionary."""
    truth = drawn(3)
    found = truth.snapshot()
    (tmp_path / "s.json").write_text(json.dumps(found), encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "s.pt", "w") as archive:
        archive.writestr("s/data.pkl", pickle.dumps(found, protocol=2))
        archive.writestr("s/version", "3\n")
    for name in ("s.json", "s.pt"):
        (shown,) = read_snapshot(str(tmp_path / name))
        check(shown, truth)


@pytest.mark.slow
def test_a_long_history_is_taken_out_while_it_is_read(tmp_path: Path) -> None:
    """Events of a file of several mebibytes are read as those of a small one."""
    first, second = drawn(4, events=9500), drawn(5, events=9500)
    path = save(tmp_path / "s.pickle", two_devices(first, second))
    assert os.path.getsize(path) > 2 * MIB
    shown = read_snapshot(path)
    check(shown[0], first)
    check(shown[1], second)


@pytest.mark.slow
def test_reading_grows_with_the_file(tmp_path: Path) -> None:
    """Ten times the events take ten times as long, with room for a busy machine."""
    seconds = []
    for number, events in enumerate((3000, 30000)):
        found = Recorded()
        for name in range(events):
            found.make(name, 3 * MIB, FORWARD)
            if name > 50:
                found.drop(name - 50)
        path = save(tmp_path / f"{number}.pickle", found.snapshot())
        start = time.process_time()
        read_snapshot(path)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 25 * max(seconds[0], 0.01)


def out_of_memory(entries: int = 10**9, expandable: bool = False) -> Recorded:
    """A step that dies when its logits are made."""
    found = Recorded(capacity=2000 * MIB, entries=entries, expandable=expandable)
    for name in range(6):
        found.make(name, 100 * MIB, FORWARD)
    found.make(10, 800 * MIB + 100, BACKWARD)
    found.drop(10)
    for name in range(20, 27):
        found.make(name, 50 * MIB, KEPT)
    with pytest.raises(OutOfMemory):
        found.make(30, 1500 * MIB + 17, FORWARD)
    return found


@pytest.mark.parametrize("expandable", [False, True])
def test_the_allocation_that_failed(tmp_path: Path, expandable: bool) -> None:
    """Its bytes, what the device had left, its frames, and the blocks that were live at that moment."""
    truth = out_of_memory(expandable=expandable)
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", truth.snapshot()))
    (failed,) = shown.failed
    assert failed.requested_bytes == 1500 * MIB + 512
    assert failed.message_bytes == 1502 * MIB
    assert failed.stack[1].file == "modeling_llama.py"
    assert shown.moment == "oom"
    assert [(group.count, group.bytes) for group in shown.live] == [(6, 600 * MIB), (7, 350 * MIB)]
    assert shown.live_bytes == truth.allocated
    assert shown.peak_allocated_bytes == truth.peak_allocated
    assert not shown.notes


def test_a_lost_history_is_stated(tmp_path: Path) -> None:
    """What is live is known from the segments; peaks are lower bounds, and the answer says so."""
    truth = out_of_memory(entries=6)
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", truth.snapshot()))
    assert truth.lost
    assert shown.live_bytes == truth.allocated
    assert not shown.complete
    assert shown.before_bytes >= 600 * MIB
    assert "earlier events are lost" in shown.notes[0]
    (none,) = read_snapshot(save(tmp_path / "n.pickle", {**truth.snapshot(), "device_traces": [[]]}))
    assert none.moment == "end"
    assert none.peak_allocated_bytes == none.allocated_bytes == truth.allocated
    assert "no history" in none.notes[0]


def test_growth_over_steps(tmp_path: Path) -> None:
    """A place that leaves a block behind in each step is named; weights and one step's activations are not."""
    found = Recorded()
    found.make(0, 300 * MIB, FORWARD)
    for step in range(1, 8):
        for name in range(4):
            found.make(100 * step + name, 40 * MIB, FORWARD)
        found.make(100 * step + 10, 60 * MIB, BACKWARD)
        for name in (0, 1, 2, 3, 10):
            found.drop(100 * step + name)
        found.make(100 * step + 50, 8 * MIB, KEPT)
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", found.snapshot()))
    (growth,) = shown.growth
    assert growth.stack[0].file == "callbacks.py"
    assert growth.steps >= 6
    assert growth.bytes % (8 * MIB) == 0


def test_a_profile_of_the_cpu(tmp_path: Path) -> None:
    """torch.profiler's segments are spans of addresses: reserved memory is not known, and sizes are as requested."""
    spans = {"device": 1, "address": 4096, "total_size": 2**45, "stream": 0, "blocks": []}
    spans["blocks"] = [
        {"size": 1000, "state": "active_allocated", "requested_size": 1000, "frames": []},
        {"size": 2**45 - 1000, "state": "inactive"},
    ]
    events = [
        {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "frames": [], "category": "parameter"},
        {"action": "alloc", "addr": 9999, "size": 77, "stream": 0, "frames": [], "category": "activation"},
        {"action": "free_requested", "addr": 9999, "size": 77, "stream": 0, "frames": []},
        {"action": "free_completed", "addr": 9999, "size": 77, "stream": 0, "frames": []},
    ]
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", {"segments": [spans], "device_traces": [[], events]}))
    assert (shown.source, shown.reserved_bytes, shown.peak_allocated_bytes) == ("profiler", None, 1077)
    assert "torch.profiler" in shown.notes[0]


def test_blocks_that_wait_for_a_stream(tmp_path: Path) -> None:
    """Freed by the program, kept for another stream: not allocated, and told apart."""
    segment = {"device": 0, "address": 0, "total_size": 20 * MIB, "segment_type": "large", "blocks": []}
    segment["blocks"] = [
        {"size": 4 * MIB, "requested_size": 4 * MIB, "state": "active_awaiting_free", "frames": []},
        {"size": 16 * MIB, "requested_size": 16 * MIB, "state": "active_allocated", "frames": []},
    ]
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", {"segments": [segment], "device_traces": [[]]}))
    assert (shown.allocated_bytes, shown.live_bytes, shown.pending_bytes) == (16 * MIB, 16 * MIB, 4 * MIB)


def test_padding_of_torch_npu(tmp_path: Path) -> None:
    """torch_npu adds 32 bytes to a request: 37,632 bytes take 37,888, and 2,017,280 take 2,017,792."""
    stack = [{"name": "convert", "filename": "torch_npu/utils/_module.py", "line": 76}]
    events = [
        {"action": "segment_alloc", "addr": 0, "size": 2 * MIB, "stream": 0, "frames": stack},
        {"action": "alloc", "addr": 0, "size": 512, "stream": 0, "frames": stack},
        {"action": "free_requested", "addr": 0, "size": 512, "stream": 0, "frames": stack},
        {"action": "free_completed", "addr": 0, "size": 512, "stream": 0, "frames": stack},
    ]
    free = {"device": 0, "address": 0, "total_size": 2 * MIB, "segment_type": "small", "blocks": []}
    free["blocks"] = [{"address": 0, "size": 2 * MIB, "requested_size": 0, "state": "inactive", "frames": []}]
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", {"segments": [free], "device_traces": [events]}))
    assert shown.peak_allocated_bytes == 1024


def test_padding_that_blocks_show(tmp_path: Path) -> None:
    """Where no frame is torch_npu's, its padding shows in blocks that are larger than their request rounded up."""
    segment = {"device": 0, "address": 0, "total_size": 20 * MIB, "segment_type": "large", "is_expandable": True}
    live = {"address": 0, "size": MIB + 512, "requested_size": MIB, "state": "active_allocated", "frames": []}
    free = {"address": MIB + 512, "size": 19 * MIB - 512, "requested_size": 0, "state": "inactive", "frames": []}
    events = [
        {"action": "segment_map", "addr": 0, "size": 20 * MIB, "stream": 0, "frames": []},
        {"action": "alloc", "addr": 0, "size": MIB, "stream": 0, "frames": []},
        {"action": "alloc", "addr": MIB + 512, "size": 4 * MIB, "stream": 0, "frames": []},
        {"action": "free_requested", "addr": MIB + 512, "size": 4 * MIB, "stream": 0, "frames": []},
        {"action": "free_completed", "addr": MIB + 512, "size": 4 * MIB, "stream": 0, "frames": []},
    ]
    found = {"segments": [{**segment, "blocks": [live, free]}], "device_traces": [events]}
    (shown,) = read_snapshot(save(tmp_path / "s.pickle", found))
    assert shown.peak_allocated_bytes == 5 * MIB + 1024


class Attack:
    """A pickle that runs a command when it is read by an unpickler that builds whatever it is asked for."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def whole(**segment: Any) -> bytes:
    """A snapshot of one segment."""
    one = {"device": 0, "address": 0, "total_size": 2 * MIB, "blocks": [], "stream": 0, "segment_type": "large"}
    return pickle.dumps({"segments": [{**one, **segment}], "device_traces": []})


def block(size: Any, **more: Any) -> list[dict[str, Any]]:
    """One live block."""
    return [{"size": size, "state": "active_allocated", "requested_size": 512, "frames": [], **more}]


def traced(**event: Any) -> bytes:
    """A snapshot of one event."""
    one = {"action": "alloc", "addr": 0, "size": 512, "stream": 0, "frames": []}
    return pickle.dumps({"segments": [], "device_traces": [[{**one, **event}]]})


def cyclic() -> bytes:
    """Segments that are their own blocks."""
    found: dict[str, Any] = {"segments": [], "device_traces": []}
    found["segments"].append({"device": 0, "blocks": found["segments"], "total_size": 1})
    return pickle.dumps(found)


def repeated() -> bytes:
    """One list of events, named for ten thousand devices."""
    events = [{"action": "alloc", "addr": 1, "size": 512, "stream": 0, "frames": []} for _ in range(2000)]
    segments = [{"device": 0, "total_size": 1, "blocks": block(512) * 2000}] * 20000
    return pickle.dumps({"segments": segments, "device_traces": [events] * 20000})


HOSTILE: dict[str, bytes] = {
    "global": b"cos\nsystem\n(S'true'\ntR.",
    "stack-global": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    "getattr": b"\x80\x02cbuiltins\ngetattr\ncos\nsystem\nX\x05\x00\x00\x00title\x86R.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x02Pid\n.",
    "persistent-binary": b"\x80\x04X\x01\x00\x00\x00aQ.",
    "instance": b"\x80\x02(ios\nsystem\n.",
    "object": b"\x80\x02(cos\nsystem\no.",
    "build": b"\x80\x02}}b.",
    "reduce-a-string": b"\x80\x04\x8c\x01a)R.",
    "huge-frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}.",
    "huge-string": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x",
    "huge-bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**37) + b"x",
    "huge-integer": b"\x80\x04\x8b" + struct.pack("<I", 4_000_000) + b"\x7f" * 4_000_000 + b".",
    "digits": b"\x80\x02I" + b"9" * 400_000 + b"\n.",
    "deep": b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "laughs": b"\x80\x04]\x94" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94" for i in range(60)) + b".",
    "none": b"\x80\x04N.",
    "list": pickle.dumps([1, 2, 3]),
    "no-keys": b"\x80\x04}.",
    "short": b"\x80",
    "empty": b"",
    "text": b"not a pickle",
    "cycle": cyclic(),
    "repeated": repeated(),
    "negative": whole(blocks=block(-5)),
    "nan": whole(blocks=block(float("nan"))),
    "infinite": whole(total_size=float("inf")),
    "text-size": whole(blocks=block("1")),
    "boolean": whole(blocks=block(True)),
    "absurd": whole(total_size=2**9000),
    "no-blocks": whole(blocks=None),
    "device-text": whole(device="cuda:0"),
    "device-huge": whole(device=2**40),
    "device-negative": whole(device=-1),
    "state": whole(blocks=block(512, state=3)),
    "frames-text": whole(blocks=block(512, frames="abc")),
    "frame-number": whole(blocks=block(512, frames=[7])),
    "event-boolean": traced(size=True),
    "event-negative": traced(size=-512),
    "event-text": traced(addr="0x7f"),
    "event-absurd": traced(size=2**61),
    "event-unknown": traced(action="explode\x1b[2J"),
    "traces-huge": pickle.dumps({"segments": [], "device_traces": {"a": 1}}),
    "zip": b"PK\x03\x04" + b"\x00" * 60,
    "json-nan": b'{"segments": [{"device": 0, "total_size": NaN, "blocks": []}], "device_traces": []}',
    "json-deep": b'{"segments": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "json-digits": b'{"segments": [{"total_size": ' + b"9" * 100_000 + b', "blocks": []}]}',
}
"""Files that are refused, in one line and within a second."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing runs, nothing is printed, and the message is one line without escape sequences."""
    path = tmp_path / "s.pickle"
    path.write_bytes(HOSTILE[name])
    start = time.perf_counter()
    with pytest.raises(UsageError) as refused:
        read_snapshot(str(path))
    assert time.perf_counter() - start < 5  # a second on a machine that does nothing else
    assert refused.value.message.isprintable()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    """No name is ever looked up, wherever it stands; what follows a whole snapshot is not read."""
    mark = tmp_path / "mark"
    for attack in (Attack(str(mark)), {"segments": [Attack(str(mark))]}, {"segments": [], "x": (1, [Attack("y")])}):
        with pytest.raises(UsageError, match="plain data only"):
            read_snapshot(save(tmp_path / "evil.pickle", attack, protocol))
    path = tmp_path / "two.pickle"
    path.write_bytes(whole() + pickle.dumps(Attack(str(mark))))
    assert read_snapshot(str(path))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("start", "kind", "words"),
    [
        (b"\x1f\x8b\x08\x00", "other", "a gzip file"),
        (b"\x28\xb5\x2f\xfd", "other", "a Zstandard file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "other", "a Git LFS pointer"),
        (b'{"device_traces": []', "json", ""),
        (b"PK\x03\x04", "zip", ""),
        (b"\x80\x04", "pickle", ""),
        (b"Traceback (most recent call last)", None, ""),
        (b'{"step": 1, "loss": 2.5}', None, ""),
    ],
)
def test_files_are_told_apart(tmp_path: Path, start: bytes, kind: str | None, words: str) -> None:
    """Packed files and pointers are named; logs, also of JSON lines, are no snapshots."""
    assert snapshot_kind(start) == kind
    if words:
        (tmp_path / "s").write_bytes(start)
        with pytest.raises(UsageError, match=words):
            read_snapshot(str(tmp_path / "s"))


def test_names_cannot_drive_a_terminal(tmp_path: Path) -> None:
    """Escape sequences and line ends in frames become visible."""
    path = tmp_path / "s.pickle"
    path.write_bytes(whole(blocks=block(512, frames=[{"name": "\x1b]0;owned\x07", "filename": "a\nb", "line": 1}])))
    (shown,) = read_snapshot(str(path))
    assert all(text.isprintable() for frame in shown.live[0].stack for text in (frame.name, frame.file))


def test_damaged_files(tmp_path: Path) -> None:
    """A file with any bytes changed is read or refused, never a crash."""
    for seed in range(60):
        draw = random.Random(seed)  # noqa: S311 - no secrets
        data = bytearray(pickle.dumps(drawn(1, events=30).snapshot()))
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path = tmp_path / "s.pickle"
        path.write_bytes(bytes(data))
        with suppress(UsageError):
            read_snapshot(str(path))


def test_readings_for_a_plan(tmp_path: Path) -> None:
    """What a plan is compared with: a full peak, or a lower bound where an allocation failed or history is lost."""
    whole_history = {r.metric: r for r in memory_readings(save(tmp_path / "a.pickle", drawn(6).snapshot()))}
    assert not whole_history["allocated"].at_least
    assert whole_history["allocated"].bytes == drawn(6).peak_allocated
    failed = {r.metric: r for r in memory_readings(save(tmp_path / "b.pickle", out_of_memory().snapshot()))}
    assert failed["allocated"].at_least
    assert failed["allocated"].bytes == 950 * MIB + 1500 * MIB + 512
    silent = {**out_of_memory().snapshot(), "device_traces": []}
    (allocated, _) = memory_readings(save(tmp_path / "c.pickle", silent))
    assert allocated.at_least
    assert "without history" in allocated.source
    fuller = memory_readings(save(tmp_path / "d.pickle", two_devices(drawn(1, events=9), out_of_memory())))
    assert "device 1" in fuller[0].source
    with pytest.raises(UsageError, match="without memory"):
        memory_readings(save(tmp_path / "e.pickle", {"segments": [], "device_traces": []}))
