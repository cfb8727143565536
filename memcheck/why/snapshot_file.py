"""Reads the file of a memory snapshot without running what it holds: a pickle, torch.save's archive, or JSON.

``torch.cuda.memory._dump_snapshot`` pickles dictionaries, lists, strings and numbers. A pickle that asks for anything
else, such as a class or a function, is refused: unpickling it would run code of the file's author. Events make up most
of a large snapshot. They are taken out of their list while the file is still being read, so that memory holds a few
numbers for each.
"""

from __future__ import annotations

import gc
import io
import pickle
import sys
from array import array
from collections.abc import Callable
from typing import IO, Any, BinaryIO, NoReturn

from memcheck.edge.opener import open_file
from memcheck.edge.screen import one_line
from memcheck.errors import UsageError
from memcheck.record import Record

MIB = 2**20
LARGEST_PICKLE = 4 * 2**30
LARGEST_JSON = 2**29
"""JSON is in memory as a whole while it is read."""
LARGEST_SIZE = 2**60
"""No memory is larger."""
LARGEST_DEVICE = 2**16
REMEMBERED = 65536
LONGEST_STACK = 512
LONGEST_NAME = 300
HOW_TO_WRITE = "write one with torch.cuda.memory._dump_snapshot()"

ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "oom", "snapshot", "workspace_snapshot",
)  # fmt: skip
"""Events of the allocator (``torch/csrc/cuda/memory_snapshot.cpp``, ``action_to_str``)."""
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM = range(8)
_CODES = {name: code for code, name in enumerate(ACTIONS)} | {"free": FREE_REQUESTED}

OTHER_FILES = (
    (b"\x1f\x8b", "a gzip file", "unpack it with gunzip"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it with unzstd"),
    (b"\xfd7zXZ", "an xz file", "unpack it with unxz"),
    (b"BZh", "a bzip2 file", "unpack it with bunzip2"),
    (b"version https://git-lfs", "a Git LFS pointer and not the snapshot itself", "fetch it with `git lfs pull`"),
)
"""How files begin that hold or name a snapshot and are not one."""


class Frame(Record):
    """One line of a stack."""

    name: str
    file: str
    line: int


class Trace:
    """The events of one device, a few numbers for each."""

    __slots__ = ("actions", "addresses", "sizes", "stacks")

    def __init__(self) -> None:
        self.actions = bytearray()
        """Places in :data:`ACTIONS`."""
        self.addresses = array("Q")
        """Bytes that, of an ``oom``, the device had left."""
        self.sizes = array("Q")
        self.stacks = array("L")
        """Numbers of stacks in :attr:`Raw.stacks`."""


class SnapshotBlock(Record):
    """A part of a segment."""

    address: int
    bytes: int
    requested_bytes: int
    """What the program asked for; 0 where the file does not say."""
    state: str
    """``active_allocated`` | ``inactive`` | ``active_pending_free`` (until torch 2.5 ``active_awaiting_free``)."""
    stack: int
    """Number of the stack in :attr:`Raw.stacks`."""


class SnapshotSegment(Record):
    """Memory that the allocator took from the driver at once, or an expandable range."""

    device: int
    address: int
    bytes: int
    expandable: bool
    profiled: bool
    """Written by torch.profiler, whose segments are spans of addresses and hold no allocator's figures."""
    blocks: tuple[SnapshotBlock, ...]


class Raw(Record):
    """A snapshot as the file holds it, with frames and stacks numbered."""

    segments: list[SnapshotSegment]
    traces: list[Trace]
    """By device."""
    stacks: list[tuple[int, ...]]
    """Numbers of frames, the innermost first. The first stack is empty."""
    frames: list[Frame]
    settings: dict[Any, Any]
    """``allocator_settings`` of torch 2.6 and later; empty where the file has none."""


def snapshot_kind(start: bytes) -> str | None:
    """What a file is that begins with these bytes: ``pickle`` | ``zip`` | ``json`` | ``other``; None: no snapshot.

    ``other``: a packed file or a pointer, which :func:`read_raw` refuses by its name. ``start``: 4 KiB or more.
    """
    if start.startswith((b"\x80", b"(dp", b"}q")):
        return "pickle"
    if start.startswith(b"PK\x03\x04"):
        return "zip"
    if start.startswith(tuple(magic for magic, _, _ in OTHER_FILES)):
        return "other"
    is_object = start.lstrip().startswith(b"{")
    return "json" if is_object and (b'"segments"' in start or b'"device_traces"' in start) else None


def read_raw(path: str) -> Raw:
    """Read a snapshot's file.

    Raises:
        UsageError: too large, packed, no snapshot, or a pickle of anything but plain data.
        OSError: the file cannot be opened.
    """
    with open_file(path) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        start = file.read(4096)
        file.seek(0)
        shown = one_line(path)
        kind = snapshot_kind(start)
        if kind == "other":
            what, remedy = next((what, how) for magic, what, how in OTHER_FILES if start.startswith(magic))
            raise UsageError(f"{shown} is {what}", remedy)
        if size > (LARGEST_JSON if kind == "json" else LARGEST_PICKLE):
            raise UsageError(f"{shown} is too large to be read: {size:,} bytes", "record a shorter history")
        collects = gc.isenabled()
        gc.disable()  # the collector would visit every event of the file again and again
        try:
            if kind == "json":
                return _from_json(file, shown, size)
            if kind == "zip":
                return _from_archive(file, shown)
            return _from_pickle(file, shown, size)
        finally:
            if collects:
                gc.enable()


class _Number(int):
    """A number that stands in a list or a frame that was numbered: no file can hold one."""


class _Numbered:
    """Takes events and frames out of the objects of a file, and numbers equal frames and stacks."""

    def __init__(self, size: int) -> None:
        self.stacks: dict[tuple[int, ...], _Number] = {(): _Number(0)}
        self.frames: dict[tuple[str, str, int], _Number] = {}
        self.alike: dict[tuple[int, ...], _Number] = {}
        """Numbers of stacks by the identities of their frames, which torch shares."""
        self.kept: list[tuple[Any, ...]] = []
        """Keeps those frames alive, so that their identities are not used again."""
        self.events = size
        """How many more events may come: a file that repeats one list a thousand times has more than bytes."""

    def stack(self, frames: Any) -> _Number:
        """The number of a stack. Its list and its frames are replaced in place, as other events share them."""
        if not frames:
            return _Number(0)
        if type(frames) is _Number:  # from JSON
            return frames
        if type(frames) is not list:
            raise TypeError("frames are no list")
        if type(frames[0]) is _Number:
            return frames[0]
        same = tuple(map(id, frames))
        number = self.alike.get(same)
        if number is None:
            kept = frames[:LONGEST_STACK]
            numbers = tuple([self.frame(frame) for frame in kept])
            number = self.stacks.setdefault(numbers, _Number(len(self.stacks)))
            if len(self.alike) < REMEMBERED:
                self.alike[same] = number
                self.kept.append(tuple(frames))
        frames[:] = (number,)
        return number

    def frame(self, frame: Any) -> _Number:
        """The number of one frame."""
        number = frame.get("")
        if type(number) is not _Number:
            name, file, line = frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)
            if type(name) is not str or type(file) is not str or type(line) is not int:
                raise TypeError("a frame is no name, file and line")
            key = (name[:LONGEST_NAME], file[-LONGEST_NAME:], line)
            number = self.frames.setdefault(key, _Number(len(self.frames)))
            frame.clear()
            frame[""] = number
        return number

    def take(self, events: list[Any], trace: Trace) -> None:
        """Move events from their list into a trace, and empty them."""
        self.events -= len(events)
        if self.events < 0:
            raise TypeError("the file has more events than bytes")
        actions, addresses, sizes, stacks = trace.actions, trace.addresses, trace.sizes, trace.stacks
        alike = self.alike
        for event in events:
            action = _CODES.get(event["action"])
            if action is None:
                raise TypeError(f"an unknown action: {one_line(str(event['action'])[:40])}")
            size = event["size"] if action < len(ACTIONS) - 2 else 0
            address = event["device_free"] if action == OOM else event.get("addr", 0)
            if type(size) is not int or type(address) is not int or size >= LARGEST_SIZE:
                raise TypeError("a size is no number of bytes")
            actions.append(action)
            addresses.append(address)
            sizes.append(size)
            frames = event.get("frames")
            if frames:
                number = alike.get(tuple(map(id, frames))) if type(frames) is list else None
                if number is None:
                    number = self.stack(frames)
                else:
                    frames[:] = (number,)
                stacks.append(number)
            else:
                stacks.append(0)
            event.clear()
        events.clear()

    def segments(self, found: list[Any]) -> list[SnapshotSegment]:
        """The segments, each size of them checked."""
        segments = []
        for segment in found:
            address, total = segment.get("address", 0), _count(segment["total_size"])
            blocks, at = segment["blocks"], _count(address)
            self.events -= len(blocks) + 1
            if self.events < 0:
                raise TypeError("the file has more blocks than bytes")
            if type(blocks) is not list:
                raise TypeError("blocks are no list")
            device = segment.get("device", 0)
            if type(device) is not int or not 0 <= device < LARGEST_DEVICE:
                raise TypeError("a device is no number of a GPU")
            taken = []
            for block in blocks:
                taken.append(self.block(block, at))
                at += taken[-1].bytes
            expandable = bool(segment.get("is_expandable", False))
            profiled = "segment_type" not in segment and "allocated_size" not in segment
            segments.append(
                SnapshotSegment(
                    device=device,
                    address=address,
                    bytes=total,
                    expandable=expandable,
                    profiled=profiled,
                    blocks=tuple(taken),
                )
            )
        return segments

    def block(self, block: Any, at: int) -> SnapshotBlock:
        """One block. ``at``: its address, which torch 2.0 does not write."""
        past = block.get("history")  # torch 2.0: the allocation that the block holds comes first
        last = past[0] if past else block
        frames, size = last.get("frames"), _count(block["size"])
        asked = last.get("real_size", 0) if past else block.get("requested_size", 0)
        state = block["state"]
        if type(state) is not str:
            raise TypeError("a state is no word")
        return SnapshotBlock(
            address=_count(block.get("address", at)),
            bytes=size,
            requested_bytes=_count(asked),
            state=state,
            stack=self.stack(frames) if frames else 0,
        )

    def raw(self, found: Any, traces: dict[int, Trace], shown: str) -> Raw:
        """The snapshot, once its file is read. ``traces``: by identity of the list that events were taken from.

        Raises:
            UsageError: the file holds something else.
        """
        segments = found.get("segments") if type(found) is dict else None
        if type(found) is not dict or type(segments) is not list:
            raise UsageError(f"{shown} is no memory snapshot of PyTorch", HOW_TO_WRITE)
        with _Unknown(shown):
            lists = found.get("device_traces") or []
            if type(lists) is not list or len(lists) > LARGEST_DEVICE:
                raise TypeError("device_traces is no list of devices")
            in_order = []
            for events in lists:
                trace = traces.setdefault(id(events), Trace())
                self.take(events, trace)
                in_order.append(trace)
            settings = found.get("allocator_settings")
            return Raw(
                segments=self.segments(segments),
                traces=in_order,
                stacks=list(self.stacks),
                frames=[Frame(one_line(name), one_line(file), line) for name, file, line in self.frames],
                settings=settings if type(settings) is dict else {},
            )


def _count(value: Any) -> int:
    """A number of bytes or an address, as it is; a boolean is none."""
    if type(value) is not int or not 0 <= value < 2**64:
        raise TypeError("a size is no number of bytes")
    return value


class _Unknown:
    """Turns what objects of another form lead to into one error."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | AttributeError | IndexError | OverflowError | ValueError):
            detail = one_line(str(error)[:120])
            raise UsageError(f"{self.shown}: a snapshot of an unknown form: {detail}", HOW_TO_WRITE) from error


class _PlainData(pickle.Unpickler):
    """Builds containers, strings and numbers, and nothing else."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Never: this is where a pickle reaches code."""
        asked = one_line(f"{module_name}.{global_name}"[:80])
        raise UsageError(
            f"the snapshot asks for {asked}; a memory snapshot holds plain data only",
            "it was not read: a pickle can run code",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        """Never: plain data refers to nothing outside."""
        raise UsageError("the snapshot refers to data outside of it", "it was not read: a pickle can run code")


class _Watched:
    """A file that calls a function after every mebibyte that was read from it."""

    def __init__(self, file: Any, call: Callable[[int], None]) -> None:
        """``file``: buffered, so that it has ``peek``."""
        self._file, self._call, self._next, self._at = file, call, MIB, 0

    def _passed(self, count: int) -> None:
        self._at += count
        if self._at >= self._next:
            self._next = self._at + MIB
            self._call(self._at)

    def read(self, count: int = -1) -> bytes:
        """Read as a file does."""
        data: bytes = self._file.read(count)
        self._passed(len(data))
        return data

    def readinto(self, buffer: Any) -> int:
        """Read as a file does."""
        count: int = self._file.readinto(buffer)
        self._passed(count)
        return count

    def readline(self, limit: int = -1) -> bytes:
        """Read as a file does."""
        data: bytes = self._file.readline(limit)
        self._passed(len(data))
        return data

    def peek(self, count: int = 0) -> bytes:
        """Read as a buffered file does."""
        data: bytes = self._file.peek(count)
        return data


class _Harvest:
    """Empties the lists of events of a pickle while it is being loaded.

    The list of a device is in the unpickler's memo before its events are added, a thousand at a time.
    """

    def __init__(self, numbered: _Numbered) -> None:
        self.numbered = numbered
        self.traces: dict[int, Trace] = {}
        self._unpickler: Any = None
        self._list: list[Any] | None = None
        self._search_at = MIB
        self._seen = 0

    def load(self, file: IO[bytes]) -> Any:
        """The pickle's object, most of its events taken out."""
        self._unpickler = _PlainData(_Watched(file, self._passed))
        return self._unpickler.load()

    def _passed(self, at: int) -> None:
        if self._list:
            self.numbered.take(self._list, self.traces[id(self._list)])
        elif at >= self._search_at:
            self._search_at = 2 * at
            self._search()

    def _search(self) -> None:
        try:
            memo = self._unpickler.memo.copy()
        except RuntimeError:  # an interpreter that does not let a file look at its reader: memory alone suffers
            self._search_at = 2**63
            return
        for number in range(self._seen, len(memo)):
            found = memo.get(number)
            if type(found) is list and found and type(found[-1]) is dict and "action" in found[-1]:
                self._list = found
                self.traces.setdefault(id(found), Trace())
        self._seen = len(memo)


def _from_pickle(file: IO[bytes], shown: str, size: int) -> Raw:
    numbered = _Numbered(size)
    harvest = _Harvest(numbered)
    hook = sys.excepthook
    sys.excepthook = lambda *_: None  # CPython prints an error of its own for a bytearray that memory cannot hold
    try:
        found = harvest.load(file)
    except UsageError:
        raise
    except MemoryError as error:
        raise UsageError(f"{shown} cannot be read as a pickle: it asks for more memory than there is") from error
    except Exception as error:  # a broken pickle fails in many ways
        detail = one_line(str(error)[:120]) or type(error).__name__
        raise UsageError(f"{shown} cannot be read as a pickle: {detail}", HOW_TO_WRITE) from error
    finally:
        sys.excepthook = hook
    return numbered.raw(found, harvest.traces, shown)


def _from_archive(file: BinaryIO, shown: str) -> Raw:
    """``torch.save`` writes a zip archive with the pickle in ``data.pkl``, which is not compressed."""
    from zipfile import ZIP_STORED, BadZipFile, ZipFile

    try:
        with ZipFile(file) as archive:
            inside = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == "data.pkl"]
            if len(inside) != 1 or inside[0].compress_type != ZIP_STORED:
                raise UsageError(f"{shown} is a zip archive, and none of torch.save's", "unpack it, and name the file")
            with archive.open(inside[0]) as stored:
                return _from_pickle(stored, shown, inside[0].file_size)
    except (BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        detail = one_line(str(error)[:120])
        raise UsageError(f"{shown} is a zip archive that cannot be read: {detail}", "write it again") from error


def _from_json(file: BinaryIO, shown: str, size: int) -> Raw:
    import json

    numbered = _Numbered(size)

    def compact(value: dict[str, Any]) -> dict[str, Any]:
        frames = value.get("frames")
        if type(frames) is list:
            value["frames"] = numbered.stack(frames)
        return value

    def refused(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number of bytes")

    with _Unknown(shown):
        try:
            found = json.loads(file.read(), object_hook=compact, parse_constant=refused)
        except RecursionError as error:
            raise ValueError("lists within lists without end") from error
        return numbered.raw(found, {}, shown)
