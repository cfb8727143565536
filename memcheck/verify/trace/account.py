"""The account of live storages: what each one is, and how high their sum goes in each phase."""

from __future__ import annotations

import weakref

import torch

from memcheck.record import Record
from memcheck.verify.replay.sequence import Sequence

ALIGNMENT = 512
"""The CUDA caching allocator rounds every block up to this."""


def rounded(size: int) -> int:
    """Bytes of the block that holds ``size`` bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class LiveStorage:
    """One live storage."""

    __slots__ = ("block", "dtype", "module", "operation", "phase", "recomputed", "reference", "region", "shape", "size")

    def __init__(self, tensor: torch.Tensor, operation: str, phase: str, module: str, region: str) -> None:
        self.size = self.block = 0
        self.operation = operation
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.phase = phase
        self.module = module
        self.region = region
        self.recomputed = phase == "backward" and bool(module)
        """Born in a module's forward while backward runs."""
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class Top(Record):
    """The highest point of a phase."""

    bytes: int
    operator: int
    """Counted from the start of the step."""
    words: str


class Account:
    """Running total of live blocks, by storage identity."""

    def __init__(self) -> None:
        self.live: dict[int, LiveStorage] = {}
        self.total = 0
        self.operators = 0
        self.tops: dict[str, Top] = {}
        self.sequence: Sequence | None = None
        """Every block that comes and goes, for a replay of the allocator."""

    def begin_step(self) -> None:
        """Forget the highest points, keep what lives."""
        self.operators = 0
        self.tops = {}
        if self.sequence is not None:
            self.sequence.begin_step()

    def enter(self, phase: str) -> None:
        """What comes now is of this part of the step."""
        if self.sequence is not None:
            self.sequence.enter(phase)

    def add(self, tensor: torch.Tensor, operation: str, phase: str, module: str, region: str) -> None:
        """A tensor appeared: count its storage unless it is known."""
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # the only identity that outlives Python's wrappers
        known = self.live.get(key)
        if known is not None and known.reference is not None and known.reference() is not None:
            if known.size != storage.size():
                self._resize(known, storage.size())
            return
        entry = LiveStorage(tensor, operation, phase, module, region)

        def died(_: object) -> None:
            self._remove(key, entry)

        entry.reference = weakref.ref(storage, died)
        self.live[key] = entry
        self._resize(entry, storage.size())

    def tag(self, tensor: torch.Tensor, region: str) -> None:
        """Say what a counted storage turned out to be."""
        self.live[tensor.untyped_storage()._cdata].region = region  # noqa: SLF001

    def resize(self, storage: torch.UntypedStorage) -> bool:
        """A storage changed its size in place; whether it is one of ours."""
        entry = self.live.get(storage._cdata)  # noqa: SLF001
        if entry is None:
            return False
        self._resize(entry, storage.size())
        return True

    def recorded(self, tensor: torch.Tensor, stream: object) -> None:
        """Another stream works on a tensor."""
        entry = self.live.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        if self.sequence is not None and entry is not None:
            self.sequence.recorded(id(entry), stream)

    def note(self, phase: str, words: str) -> bool:
        """The present as a candidate for the phase's highest point; whether it is one."""
        top = self.tops.get(phase)
        if top is not None and self.total <= top.bytes:
            return False
        self.tops[phase] = Top(self.total, self.operators, words)
        return True

    def _resize(self, entry: LiveStorage, size: int) -> None:
        block = rounded(size)
        self.total += block - entry.block
        if self.sequence is not None and block != entry.block:
            self.sequence.freed(id(entry))
            self.sequence.allocated(id(entry), block)
        entry.size, entry.block = size, block

    def _remove(self, key: int, entry: LiveStorage) -> None:
        self.total -= entry.block
        entry.block = 0
        if self.sequence is not None:
            self.sequence.freed(id(entry))
        if self.live.get(key) is entry:
            del self.live[key]
