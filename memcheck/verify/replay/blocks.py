"""Blocks of device memory, and the pools in which the free ones wait (c10/cuda/CUDACachingAllocator.cpp)."""

from __future__ import annotations

from bisect import bisect_left, insort

from memcheck.accounts.segments import LARGE_BUFFER, MIN_LARGE, ROUND_LARGE, SMALL_BUFFER, SMALL_SIZE

MIN_BLOCK = 512
"""``kMinBlockSize``: every size is rounded up to a multiple of it."""


def rounded(size: int, to: int = MIN_BLOCK) -> int:
    """The next multiple, and never nothing."""
    return max(to, -(-size // to) * to)


def segment_size(size: int) -> int:
    """What the driver is asked for, for a block of that size (``get_allocation_size``)."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    return LARGE_BUFFER if size < MIN_LARGE else rounded(size, ROUND_LARGE)


class MemoryBlock:
    """A range of a segment: live, free, or, in an expandable segment, not mapped to memory."""

    __slots__ = ("address", "live", "mapped", "next", "pool", "previous", "size", "stream")

    def __init__(self, pool: BlockPool, stream: int, address: int, size: int, *, mapped: bool = True) -> None:
        self.pool, self.stream, self.address, self.size = pool, stream, address, size
        self.live, self.mapped = False, mapped
        self.previous: MemoryBlock | None = None
        self.next: MemoryBlock | None = None

    @property
    def expandable_size(self) -> int:
        """How large it can grow in place."""
        after = self.next
        return self.size + (after.size if after is not None and not after.mapped else 0)

    def behind(self, before: MemoryBlock) -> None:
        """Take the place after a block of the same segment."""
        self.previous, self.next = before, before.next
        if before.next is not None:
            before.next.previous = self
        before.next = self


class BlockQueue:
    """Free blocks of one stream in an order: by size and address, or by address."""

    __slots__ = ("_by_size", "_keys", "_of")

    def __init__(self, *, by_size: bool) -> None:
        self._by_size = by_size
        self._keys: list[tuple[int, int]] = []
        self._of: dict[tuple[int, int], MemoryBlock] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def _key(self, block: MemoryBlock) -> tuple[int, int]:
        return (block.size if self._by_size else 0, block.address)

    def add(self, block: MemoryBlock) -> None:
        """A block is free now."""
        key = self._key(block)
        insort(self._keys, key)
        self._of[key] = block

    def remove(self, block: MemoryBlock) -> None:
        """Take it out, before its size or address changes."""
        key = self._key(block)
        del self._keys[bisect_left(self._keys, key)], self._of[key]

    def at_least(self, size: int) -> int:
        """The position of the first block that has the size."""
        return bisect_left(self._keys, (size, 0))

    def at(self, position: int) -> MemoryBlock:
        """The block at a position."""
        return self._of[self._keys[position]]

    def all(self) -> list[MemoryBlock]:
        """Every block in its order."""
        return [self._of[key] for key in self._keys]


class BlockPool:
    """The small or the large blocks; every stream has its own."""

    __slots__ = ("free", "small", "unmapped")

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.free: dict[int, BlockQueue] = {}
        self.unmapped: dict[int, BlockQueue] = {}

    def free_of(self, stream: int) -> BlockQueue:
        """Free blocks of a stream, best fit first."""
        return self.free.setdefault(stream, BlockQueue(by_size=True))

    def unmapped_of(self, stream: int) -> BlockQueue:
        """Addresses of a stream that are not mapped to memory."""
        return self.unmapped.setdefault(stream, BlockQueue(by_size=False))

    @property
    def page(self) -> int:
        """Granularity of its expandable segments, in bytes."""
        return SMALL_BUFFER if self.small else LARGE_BUFFER

    def queue_of(self, block: MemoryBlock) -> BlockQueue:
        """Where the block waits while it is not live."""
        return self.free_of(block.stream) if block.mapped else self.unmapped_of(block.stream)
