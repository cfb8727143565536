"""Writes memory snapshots as torch does, of a caching allocator without a GPU, with what they have to be read as."""

from __future__ import annotations

from typing import Any

from memcheck.verify.replay.allocator import Allocator, BlockPool, MemoryBlock, OutOfMemory

TORCH = "/site-packages/torch/"


def frames(*lines: tuple[str, str, int]) -> list[dict[str, Any]]:
    """A stack, the innermost frame first."""
    return [{"name": name, "filename": file, "line": line} for name, file, line in lines]


STEP = frames(("training_step", "transformers/trainer.py", 3782), ("main", "train.py", 84))
FORWARD = [*frames(("forward", TORCH + "nn/modules/linear.py", 125), ("forward", "modeling_llama.py", 318)), *STEP]
BACKWARD = [*frames(("_engine_run_backward", TORCH + "autograd/graph.py", 823)), *STEP]
KEPT = [*frames(("on_step_end", "callbacks.py", 41)), *STEP]


class Recorded(Allocator):
    """An allocator that keeps its history.

    ``layout``: a version of torch, whose form the snapshot has. ``entries``: as of ``_record_memory_history``.
    """

    def __init__(self, layout: str = "2.13", entries: int = 10**9, **options: Any) -> None:
        super().__init__(**options)
        self.layout = tuple(map(int, layout.split(".")))
        self.entries = entries
        self.events: list[dict[str, Any]] = []
        self.known: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        """Requested bytes and stack of each live block."""
        self.now: list[dict[str, Any]] = []
        self.lost = 0

    def note(self, action: str, address: int, size: int) -> None:
        """One event."""
        named = {"device_free": address} if action == "oom" else {"addr": address}
        event = {"action": action, **named, "size": size, "stream": 0, "frames": list(self.now)}
        if self.layout >= (2, 6):
            event["time_us"] = len(self.events) + self.lost
        self.events.append(event)
        while len(self.events) > self.entries:
            del self.events[0]
            self.lost += 1

    def make(self, name: int, size: int, stack: list[dict[str, Any]]) -> None:
        """Allocate under a stack."""
        self.now = stack
        try:
            self.allocate(name, size)
        except OutOfMemory:
            self.note("oom", self._capacity - self.reserved, -(-size // 512) * 512)
            raise
        self.known[name] = (size, stack)
        self.note("alloc", self._live[name].address, size)

    def drop(self, name: int) -> None:
        """Free."""
        size, self.now = self.known.pop(name)
        address = self._live[name].address
        self.note("free_requested", address, size)
        self.free(name)
        self.note("free_completed", address, size)

    def _new(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        block = super()._new(pool, size, stream)
        if block is not None and not self._expandable:
            self.note("segment_alloc", block.address, block.size)
        return block

    def _map(self, block: MemoryBlock, size: int) -> bool:
        before, address = self.reserved, block.address
        done = super()._map(block, size)
        if done:
            self.note("segment_map", address, self.reserved - before)
        return done

    def _give_back(self, block: MemoryBlock) -> None:
        before = self.reserved
        super()._give_back(block)
        gone = before - self.reserved
        if gone and not self._expandable:
            self.note("segment_free", block.address, gone)
        elif gone:
            self.note("segment_unmap", block.address, gone)

    def segment(self, device: int, address: int, total: int, live: list[tuple[int, int, int]]) -> dict[str, Any]:
        """One segment as torch writes it. ``live``: addresses, bytes and names of the blocks in use."""
        blocks: list[dict[str, Any]] = []
        at = address
        for start, size, name in [*live, (address + total, 0, -1)]:
            if start > at:
                blocks.append({"address": at, "size": start - at, "requested_size": 0, "state": "inactive"})
            if size:
                asked, stack = self.known[name]
                block = {"address": start, "size": size, "requested_size": asked, "state": "active_allocated"}
                blocks.append({**block, "frames": list(stack)})
            at = start + size
        if self.layout < (2, 1):
            for block in blocks:
                place = block.pop("address")
                past = {"addr": place, "real_size": block.pop("requested_size"), "frames": block.pop("frames", [])}
                if block["state"] != "inactive":
                    block["history"] = [past]
        used = sum(size for _, size, _ in live)
        found: dict[str, Any] = {
            "device": device,
            "address": address,
            "total_size": total,
            "allocated_size": used,
            "stream": 0,
        }
        if self.layout >= (2, 6):
            found["is_expandable"] = self._expandable
        return {**found, "segment_type": "large", "blocks": blocks}

    def snapshot(self, device: int = 0) -> dict[str, Any]:
        """What ``_dump_snapshot`` writes."""
        live = sorted((block.address, block.size, name) for name, block in self._live.items())
        free = [(b.address, b.size) for pool in self._pools for queue in pool.free.values() for b in queue.all()]
        segments: list[list[int]] = []
        for address, size in sorted([*free, *((address, size) for address, size, _ in live)]):
            if segments and sum(segments[-1]) == address:
                segments[-1][1] += size
            else:
                segments.append([address, size])
        written = [
            self.segment(device, address, size, [b for b in live if address <= b[0] < address + size])
            for address, size in segments
        ]
        traces: list[list[dict[str, Any]]] = [[] for _ in range(device)]
        return {"segments": written, "device_traces": [*traces, self.events]}


def two_devices(first: Recorded, second: Recorded) -> dict[str, Any]:
    """One file of two devices."""
    one, other = first.snapshot(), second.snapshot(1)
    return {
        "segments": one["segments"] + other["segments"],
        "device_traces": [one["device_traces"][0], other["device_traces"][1]],
    }
