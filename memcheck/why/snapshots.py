"""What a memory snapshot of PyTorch shows: peaks, the allocation that failed, and what was live at that moment.

A snapshot holds the allocator's segments as they are when it is written, and the last events before that. The events
are run again, forward, from the state that they start from. An event carries the bytes that were requested. The bytes
of its block follow from the free block that it was cut from (``c10/cuda/CUDACachingAllocator.cpp``, ``should_split``).
"""

from __future__ import annotations

from array import array
from itertools import pairwise

from memcheck.accounts.state import SMALL_SIZE, segment_size
from memcheck.autograd.tensor import BLOCK_BYTES
from memcheck.edge.screen import gib
from memcheck.record import Record
from memcheck.why.snapshot_file import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Frame,
    Raw,
    SnapshotSegment,
    Trace,
    read_raw,
)

LIVE = "active_allocated"
FREE = "inactive"
NPU_PADDING = 32
"""Bytes that torch_npu adds to each request (``torch_npu/csrc/core/npu/NPUCachingAllocator.cpp``, ``round_size``)."""
LEAKED_STEPS = 3
"""Steps in each of which a place left a block unfreed before that is called growth."""


class LiveBlocks(Record):
    """Equal blocks that were live together, allocated by the same stack."""

    stack: tuple[Frame, ...]
    """The innermost frame first; empty where none was recorded (backward runs in threads without Python frames)."""
    count: int  # type: ignore[assignment]
    bytes: int
    """Sum over the blocks."""
    requested_bytes: int
    """Bytes of each block as requested; the block's own where the file does not say."""
    steps: int = 1
    """In how many steps they were allocated."""


class FailedAllocation(Record):
    """An ``oom`` entry."""

    requested_bytes: int
    """Rounded up to 512 bytes."""
    free_bytes: int
    """What the device had left."""
    stack: tuple[Frame, ...]

    @property
    def message_bytes(self) -> int:
        """What the message of the error prints: the segment that the allocator asked for."""
        return segment_size(self.requested_bytes)


class LeftBehind(Record):
    """Blocks of one place that steps do not free."""

    stack: tuple[Frame, ...]
    steps: int
    bytes: int
    """Sum of all blocks that stay."""


class DeviceMemory(Record):
    """What a snapshot shows of one device."""

    device: int
    source: str
    """``allocator``, or ``profiler``: written by torch.profiler, also of a CPU."""
    events: int
    allocated_bytes: int
    """When the snapshot was written."""
    reserved_bytes: int | None
    """Reserved bytes when it was written; None where it is not known."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    complete: bool
    """Whether the history begins with an empty allocator. If not, the peaks are lower bounds."""
    before_bytes: int
    """Allocated when the history begins."""
    failed: tuple[FailedAllocation, ...]
    """Allocations that failed, in order."""
    moment: str
    """When :attr:`live` was live: ``oom`` (the last allocation that failed) | ``peak`` | ``end``."""
    live: tuple[LiveBlocks, ...]
    """The largest first."""
    live_bytes: int
    pending_bytes: int
    """Freed by the program at that moment, and kept for another stream."""
    expandable: bool
    growth: tuple[LeftBehind, ...]
    notes: tuple[str, ...]
    """What the snapshot cannot say, as sentences."""


def read_snapshot(path: str) -> tuple[DeviceMemory, ...]:
    """What the snapshot in a file shows, device by device; devices without memory are left out.

    Raises:
        UsageError: no snapshot, or a file that cannot be read safely.
        OSError: the file cannot be opened.
    """
    return devices_of(read_raw(path))


def devices_of(raw: Raw) -> tuple[DeviceMemory, ...]:
    """What a snapshot that was read shows, device by device."""
    by_device: dict[int, list[SnapshotSegment]] = {}
    for segment in raw.segments:
        by_device.setdefault(segment.device, []).append(segment)
    numbers = {*by_device, *(number for number, trace in enumerate(raw.traces) if trace.actions)}
    found = []
    for number in sorted(numbers):
        trace = raw.traces[number] if number < len(raw.traces) else Trace()
        found.append(_Replay(raw, number, by_device.get(number, []), trace).shown())
    return tuple(found)


class _Replay:
    """Runs the events of one device again."""

    def __init__(self, raw: Raw, number: int, segments: list[SnapshotSegment], trace: Trace) -> None:
        self.raw, self.number, self.segments, self.trace = raw, number, segments, trace
        self.profiled = bool(segments) and all(segment.profiled for segment in segments)
        self.blocks = array("Q", bytes(8 * len(trace.actions)))
        """Bytes of each event's block."""
        limit = raw.settings.get("max_split_size", -1)
        self.max_split = limit if type(limit) is int and limit > 0 else 2**63
        self.padding = self._padding()
        self.end = {
            block.address: (block.bytes, block.stack, block.requested_bytes)
            for segment in segments
            for block in segment.blocks
            if block.state != FREE
        }
        """Blocks in use when the snapshot was written: bytes, stack, requested bytes."""
        self.pending_at_end = {
            block.address for segment in segments for block in segment.blocks if block.state not in (LIVE, FREE)
        }
        self.start, self.last = self._ends()

    def _padding(self) -> int:
        """Bytes that the allocator adds to a request: torch_npu's where a frame is its own, or all blocks show it."""
        if any("torch_npu" in frame.file for frame in self.raw.frames):
            return NPU_PADDING
        plain = padded = 0
        for segment in self.segments:
            for block in segment.blocks:
                asked = block.requested_bytes
                without = -(-asked // BLOCK_BYTES) * BLOCK_BYTES
                if block.state == LIVE and asked + NPU_PADDING > without:
                    plain += block.bytes == without
                    padded += block.bytes == without + BLOCK_BYTES
        return NPU_PADDING if padded and not plain else 0

    def rounded(self, requested: int) -> int:
        """Bytes of a block for a request (``round_size``); torch.profiler records tensors as they are."""
        if self.profiled:
            return requested
        return max(BLOCK_BYTES, -(-(requested + self.padding) // BLOCK_BYTES) * BLOCK_BYTES)

    def _ends(self) -> tuple[dict[int, tuple[int, int, int]], dict[int, int]]:
        """Blocks in use before the first event, and the last event that allocated each address."""
        start: dict[int, tuple[int, int, int]] = {}
        last: dict[int, int] = {}
        trace = self.trace
        for index, (action, address) in enumerate(zip(trace.actions, trace.addresses, strict=True)):
            if action == ALLOC:
                last[address] = index
            elif action in (FREE_REQUESTED, FREE_COMPLETED) and address not in last and address not in start:
                size = trace.sizes[index]
                start[address] = (self.rounded(size), trace.stacks[index], size)
        start.update({a: block for a, block in self.end.items() if a not in last and a not in start})
        return start, last

    def shown(self) -> DeviceMemory:
        """Everything that the device's part of the snapshot says."""
        raw, trace = self.raw, self.trace
        pending = sum(self.end[a][0] for a in self.pending_at_end)
        at_end = sum(block[0] for block in self.end.values()) - pending
        reserved = None if self.profiled else sum(segment.bytes for segment in self.segments)
        peak, peak_index = self._run()
        peak_reserved, reserved_before = self._reserved(reserved)
        failures = [i for i, action in enumerate(trace.actions) if action == OOM]
        before = sum(block[0] for block in self.start.values())
        complete = bool(trace.actions) and not before and not reserved_before
        moment, index = ("oom", failures[-1]) if failures else ("peak", peak_index)
        if not trace.actions:
            moment = "end"
        live, live_bytes, pending_bytes = self._live_at(index)
        return DeviceMemory(
            device=self.number,
            source="profiler" if self.profiled else "allocator",
            events=len(trace.actions),
            allocated_bytes=at_end,
            reserved_bytes=reserved,
            peak_allocated_bytes=max(peak, at_end),
            peak_reserved_bytes=peak_reserved,
            complete=complete,
            before_bytes=before,
            failed=tuple([self._failed(i) for i in failures]),
            moment=moment,
            live=live,
            live_bytes=live_bytes,
            pending_bytes=pending_bytes,
            expandable=any(s.expandable for s in self.segments),
            growth=tuple(
                [
                    LeftBehind(stack=group.stack, steps=group.steps, bytes=group.bytes)
                    for group in live
                    if group.steps >= LEAKED_STEPS
                ]
            ),
            notes=tuple(self._notes(complete, before, bool(raw.stacks[1:]))),
        )

    def _run(self) -> tuple[int, int]:
        """The highest allocated bytes, and how many events come before that. Fills :attr:`blocks`."""
        trace, blocks, end, last = self.trace, self.blocks, self.end, self.last
        live = {address: block[0] for address, block in self.start.items()}
        pending: dict[int, int] = {}
        pools = _Pools(self._first_segments(), self.start, self.max_split)
        now = peak = sum(live.values())
        at = 0
        events = zip(trace.actions, trace.addresses, trace.sizes, strict=True)
        for index, (action, address, size) in enumerate(events):
            if action == ALLOC:
                if index == last[address] and address in end:
                    block = end[address][0]
                    pools.take(address, block)
                else:
                    rounded = self.rounded(size)
                    block = pools.take(address, 0, rounded) if rounded > SMALL_SIZE else rounded
                blocks[index] = live[address] = block
                now += block
                if now > peak:
                    peak, at = now, index + 1
            elif action == FREE_REQUESTED:
                block = live.pop(address, 0)
                now -= block
                pending[address] = block
            elif action == FREE_COMPLETED:
                block = live.pop(address, 0)
                now -= block
                pools.give(address, block or pending.pop(address, 0))
            elif action == SEGMENT_ALLOC:
                pools.add(address, size)
            elif action == SEGMENT_FREE:
                pools.remove(address, size)
        return peak, at

    def _first_segments(self) -> dict[int, int]:
        """Addresses and bytes of the segments that are there before the first event, expandable ones left out."""
        known = {s.address: s.bytes for s in self.segments if not s.expandable and not s.profiled}
        trace = self.trace
        for action, address, size in zip(
            reversed(trace.actions), reversed(trace.addresses), reversed(trace.sizes), strict=True
        ):
            if action == SEGMENT_ALLOC:
                known.pop(address, None)
            elif action == SEGMENT_FREE:
                known[address] = size
        return known

    def _reserved(self, at_end: int | None) -> tuple[int | None, int]:
        """The highest reserved bytes, and those before the first event."""
        if at_end is None:
            return None, 0
        now = peak = at_end
        for action, size in zip(reversed(self.trace.actions), reversed(self.trace.sizes), strict=True):
            if action in (SEGMENT_ALLOC, SEGMENT_MAP):
                now -= size
            elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
                now += size
                peak = max(peak, now)
        return peak, now

    def _failed(self, index: int) -> FailedAllocation:
        trace = self.trace
        return FailedAllocation(trace.sizes[index], trace.addresses[index], self._stack(trace.stacks[index]))

    def _stack(self, number: int) -> tuple[Frame, ...]:
        return tuple([self.raw.frames[frame] for frame in self.raw.stacks[number]])

    def _live_at(self, index: int) -> tuple[tuple[LiveBlocks, ...], int, int]:
        """Live blocks after the first ``index`` events, their bytes, and those of blocks that wait for a stream."""
        trace = self.trace
        live: dict[int, tuple[int, int, int, int]] = {
            address: (*block, -1)
            for address, block in self.start.items()
            if trace.actions or address not in self.pending_at_end
        }
        pending = {} if trace.actions else {a: self.end[a][0] for a in self.pending_at_end}
        steps = self._steps(index)
        step, bound = 0, [*steps, 2**63]
        events = zip(trace.actions, trace.addresses, trace.sizes, trace.stacks, self.blocks, strict=True)
        for number, (action, address, size, stack, block) in enumerate(events):
            if number >= index:
                break
            if number >= bound[step]:
                step += 1
            if action == ALLOC:
                live[address] = (block, stack, size, step)
            elif action == FREE_REQUESTED:
                pending[address] = live.pop(address, (0,))[0]
            elif action == FREE_COMPLETED:
                live.pop(address, None)
                pending.pop(address, None)
        return self._grouped(live), sum(b[0] for b in live.values()), sum(pending.values())

    def _grouped(self, live: dict[int, tuple[int, int, int, int]]) -> tuple[LiveBlocks, ...]:
        groups: dict[tuple[int, int], tuple[list[int], set[int]]] = {}
        for block, stack, asked, step in live.values():
            total, steps = groups.setdefault((stack, asked or block), ([0, 0], set()))
            total[0] += 1
            total[1] += block
            steps.add(step)
        rows = [
            LiveBlocks(
                stack=self._stack(stack),
                count=count,
                bytes=n_bytes,
                requested_bytes=asked,
                steps=len(steps - {-1}) or 1,
            )
            for (stack, asked), ((count, n_bytes), steps) in groups.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.bytes))

    def _steps(self, index: int) -> list[int]:
        """Events at which a step ends: the last one of each backward, up to ``index``.

        Backward runs in threads of C++, whose events have no Python frame, or under ``run_backward`` of autograd.
        """
        backward = {0} | {
            number
            for number, stack in enumerate(self.raw.stacks)
            if any("run_backward" in self.raw.frames[frame].name for frame in stack)
        }
        if len(self.raw.stacks) == 1:
            return []
        allocs = [i for i, action in enumerate(self.trace.actions[:index]) if action == ALLOC]
        kinds = [self.trace.stacks[i] in backward for i in allocs]
        return [after for (was, now), after in zip(pairwise(kinds), allocs[1:], strict=True) if was and not now]

    def _notes(self, complete: bool, before: int, has_frames: bool) -> list[str]:
        notes = []
        if self.profiled:
            notes.append("torch.profiler wrote this snapshot: it has no segments, so reserved memory is not known.")
        if not self.trace.actions:
            notes.append(
                "The snapshot has no history: it shows what was in use when it was written. The peak may be higher,"
                " and what was freed before is not known."
            )
        elif not complete and not self.profiled:
            notes.append(
                f"The history begins with {gib(before)} GiB in use: earlier events are lost or were not recorded."
                " The peak before that, and who freed what, are not known."
            )
        if self.trace.actions and not has_frames:
            notes.append("No stacks were recorded: which code allocated a block is not known.")
        return notes


class _Pools:
    """Free blocks of segments that are not expandable, whose large blocks keep a rest of up to 1 MiB."""

    def __init__(self, segments: dict[int, int], live: dict[int, tuple[int, int, int]], max_split: int) -> None:
        self.max_split = max_split
        self.free: dict[int, int] = {}
        """Bytes of free blocks by address."""
        self.ends: dict[int, int] = {}
        """Addresses of blocks by where they end."""
        self.bounds: set[int] = set()
        """Where segments begin and end."""
        self.taken: set[int] = set()
        """Addresses of their live blocks: blocks of expandable segments are none of them."""
        used = sorted((address, block[0]) for address, block in live.items())
        place = 0
        for address, size in sorted(segments.items()):
            self.bounds.update((address, address + size))
            at = address
            while place < len(used) and used[place][0] < address + size:
                if used[place][0] >= at:
                    self._put(at, used[place][0] - at)
                    at = used[place][0] + used[place][1]
                    self.taken.add(used[place][0])
                place += 1
            self._put(at, address + size - at)

    def _put(self, address: int, size: int) -> None:
        if size > 0:
            if address in self.free:  # events that contradict each other
                self._cut(address)
            if address + size in self.ends:
                self._cut(self.ends[address + size])
            self.free[address] = size
            self.ends[address + size] = address

    def _cut(self, address: int) -> int:
        size = self.free.pop(address)
        self.ends.pop(address + size, None)
        return size

    def add(self, address: int, size: int) -> None:
        """A new segment."""
        self.bounds.update((address, address + size))
        self._put(address, size)

    def remove(self, address: int, size: int) -> None:
        """A segment that goes back to the driver."""
        if address in self.free:
            self._cut(address)
        self.bounds.difference_update((address, address + size))

    def take(self, address: int, block: int, rounded: int = 0) -> int:
        """The bytes of a block that is allocated at an address. ``block``: its bytes if known; else ``rounded`` or
        all of the free block, if what would remain is too small to be split off.
        """
        if address not in self.free:
            return block or rounded
        size = self._cut(address)
        self.taken.add(address)
        if not block:
            splits = size - rounded > SMALL_SIZE and rounded < self.max_split
            block = rounded if splits else max(size, rounded)
        self._put(address + block, size - block)
        return block

    def give(self, address: int, block: int) -> None:
        """A block is free again, and joins its free neighbours of the same segment."""
        if not block or address not in self.taken:
            return
        self.taken.discard(address)
        end = address + block
        if end in self.free and end not in self.bounds:
            end += self._cut(end)
        before = self.ends.get(address)
        if before is not None and address not in self.bounds:
            self._cut(before)
            address = before
        self._put(address, end - address)
