"""torch's CUDA caching allocator, without a GPU (c10/cuda/CUDACachingAllocator.cpp, torch 2.13).

Two pools, of blocks up to 1 MiB and of larger ones, each apart for every stream. A block is the best fit among the
stream's free ones, else a new segment: 2 MiB for small blocks, 20 MiB for those below 10 MiB, else the size rounded up
to 2 MiB. A block that is too large is split where what remains is at least 512 bytes (small) or more than 1 MiB
(large); free neighbours of a segment are joined. When the driver has nothing left, segments without a live block go
back and the allocation is tried once more.

With expandable segments there is one address range per stream and pool, with pages of 2 or 20 MiB mapped where they
are needed: a free block at the end grows, every remainder of 512 bytes is split off, and whole free pages go back.

A block that another stream was recorded on (``Tensor.record_stream``) waits for that stream's events when it is freed.
Which have happened is a question of time: here they have at the next :meth:`Allocator.synchronize`, or when an
allocation would fail, which waits for all of them. Who waits for one event (``record_event``) has waited for all that
was freed before it: streams are taken to keep pace with each other.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort

from memcheck.accounts.state import LARGE_BUFFER, SMALL_BUFFER, SMALL_SIZE, segment_size

MIN_BLOCK = 512
"""``kMinBlockSize``: every size is rounded up to a multiple of it."""


def rounded(size: int, to: int = MIN_BLOCK) -> int:
    """The next multiple, and never nothing."""
    return max(to, -(-size // to) * to)


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

    def insert_after(self, before: MemoryBlock) -> None:
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


ADDRESSES = LARGE_BUFFER * 2**20
"""Room between two segments, a multiple of every page: more than a GPU has, as an expandable segment reserves."""


class OutOfMemory(Exception):  # noqa: N818  # torch's name for it
    """Not even after giving back what is free."""


class Allocator:
    """The caching allocator of one GPU. ``capacity``: bytes that the driver gives; none: no limit."""

    def __init__(
        self,
        *,
        expandable: bool = False,
        capacity: int | None = None,
        max_split: int | None = None,
        collect_above: float = 0.0,
    ) -> None:
        """``max_split``: ``max_split_size_mb`` in bytes. ``collect_above``: ``garbage_collection_threshold``."""
        self._expandable = expandable
        self._capacity = sys.maxsize if capacity is None else capacity
        self._max_split = sys.maxsize if max_split is None else max_split
        self._collect_at = int(self._capacity * collect_above) if capacity is not None and collect_above else 0
        self._pools = BlockPool(small=True), BlockPool(small=False)
        self._addresses = 0
        self._live: dict[int, MemoryBlock] = {}
        self._used_on: dict[int, set[int]] = {}
        self._waiting: list[tuple[int, MemoryBlock]] = []
        self._events: dict[int, int] = {}
        self._freed_at: dict[int, int] = {}
        self._clock = 0
        self.reserved = self.peak_reserved = 0
        """Bytes of segments: ``torch.cuda.memory_reserved()``, and the highest."""
        self.allocated = self.peak_allocated = 0
        """Bytes of live blocks: ``torch.cuda.memory_allocated()``, and the highest."""

    # ------------------------------------------------------------------ what a step asks for

    def allocate(self, name: int, size: int, stream: int = 0) -> None:
        """A live block of ``size`` bytes under a name that is not in use.

        Raises:
            OutOfMemory: the capacity does not suffice.
        """
        if not size:
            return
        self._clock += 1
        size = rounded(size)
        pool = self._pools[0] if size <= SMALL_SIZE else self._pools[1]
        block = self._best_fit(pool, size, stream)
        if block is None and self._collect_at:
            self._collect()
        block = block or self._new(pool, size, stream)
        if block is None and self._max_split != sys.maxsize and self._release_oversize(pool, size, stream):
            block = self._new(pool, size, stream)
        if block is None:
            self.release()
            block = self._new(pool, size, stream)
        if block is None:
            raise OutOfMemory(f"{size} bytes on top of {self.allocated} live and {self.reserved} reserved")
        self._split(block, size)
        block.live = True
        self._live[name] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def record_stream(self, name: int, stream: int) -> None:
        """Another stream works on the block."""
        block = self._live.get(name)
        if block is not None and block.stream != stream:
            self._used_on.setdefault(name, set()).add(stream)

    def free(self, name: int) -> None:
        """Nothing refers to the block any more."""
        block = self._live.pop(name, None)
        if block is None:
            return  # nothing was allocated for a size of nothing
        self._clock += 1
        self.allocated -= block.size
        if self._used_on.pop(name, None):
            self._waiting.append((self._clock, block))
        else:
            self._free(block)

    def record_event(self, name: int) -> None:
        """An event that :meth:`synchronize` may wait for."""
        self._events[name] = self._clock

    def synchronize(self, event: int | None = None) -> None:
        """Blocks that waited for other streams are free: all, or those freed before an event."""
        until = self._clock if event is None else self._events.pop(event)
        waiting, self._waiting = self._waiting, [each for each in self._waiting if each[0] > until]
        for freed, block in waiting:
            if freed <= until:
                self._free(block)

    def free_bytes(self) -> int:
        """Bytes that are reserved and not live."""
        return sum(b.size for pool in self._pools for queue in pool.free.values() for b in queue.all())

    def release(self) -> None:
        """Give back every segment, or page, without a live block (``release_cached_blocks``)."""
        self.synchronize()
        for pool in self._pools:
            for queue in pool.free.values():
                for block in queue.all():
                    self._give_back(block)

    # ------------------------------------------------------------------ free blocks

    def _best_fit(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        """``get_free_block``."""
        queue = pool.free_of(stream)
        position = queue.at_least(size)
        if position == len(queue):
            return None
        block = queue.at(position)
        if self._expandable:
            # the block at a segment's end counts as large as it can grow
            while position + 1 < len(queue) and queue.at(position + 1).expandable_size < block.expandable_size:
                position += 1
                block = queue.at(position)
        elif size < self._max_split <= block.size or (size >= self._max_split and block.size >= size + pool.page):
            return None  # too large a block would stay whole
        queue.remove(block)
        return block

    def _split(self, block: MemoryBlock, size: int) -> None:
        """Put back what of a block is too much (``should_split``)."""
        remaining = block.size - size
        if block.pool.small or self._expandable:
            splits = remaining >= MIN_BLOCK
        else:
            splits = size < self._max_split and remaining > SMALL_SIZE
        if not splits:
            return
        rest = MemoryBlock(block.pool, block.stream, block.address + size, remaining)
        rest.insert_after(block)
        block.size = size
        block.pool.free_of(block.stream).add(rest)

    def _free(self, block: MemoryBlock) -> None:
        block.live = False
        self._join(block)
        block.pool.free_of(block.stream).add(block)
        self._freed_at[block.address] = self._clock

    def _join(self, block: MemoryBlock) -> None:
        """``try_merge_blocks`` with both neighbours."""
        before, after = block.previous, block.next
        if before is not None and not before.live and before.mapped == block.mapped:
            before.pool.queue_of(before).remove(before)
            block.address, block.size = before.address, block.size + before.size
            block.previous = before.previous
            if before.previous is not None:
                before.previous.next = block
        if after is not None and not after.live and after.mapped == block.mapped:
            after.pool.queue_of(after).remove(after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.previous = block

    # ------------------------------------------------------------------ the driver

    def _take(self, size: int) -> bool:
        """Memory of the driver."""
        if self.reserved + size > self._capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _new(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        """A new segment, or more pages of an expandable one (``alloc_block``)."""
        if self._expandable:
            return self._grown(pool, size, stream)
        whole = segment_size(size)
        if not self._take(whole):
            return None
        self._addresses += ADDRESSES
        return MemoryBlock(pool, stream, self._addresses, whole)

    def _grown(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock | None:
        """``try_allocate_expandable_block``."""
        block = self._room(pool, size, stream)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            if after is None or not self._map(after, min(size - block.size, after.size)):
                return None
            block = after  # it has taken in the free block before it
        pool.free_of(stream).remove(block)
        return block

    def _room(self, pool: BlockPool, size: int, stream: int) -> MemoryBlock:
        """The lowest free address with room after it, mapped or not (``find_expandable_block``)."""
        for found in pool.unmapped_of(stream).all():
            before = found.previous
            start = before if before is not None and not before.live else found
            room, block = 0, start
            while room < size and not block.live:
                room += block.size
                if block.next is None:
                    break
                block = block.next
            if room >= size:
                return start
        self._addresses += ADDRESSES
        block = MemoryBlock(pool, stream, self._addresses, ADDRESSES // 2, mapped=False)
        pool.unmapped_of(stream).add(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> bool:
        """Map the first ``size`` bytes of a block (``map_block``); False if there is no memory left."""
        pool, page = block.pool, block.pool.page
        end = rounded(block.address + size, page)  # segments start at a multiple of a page
        mapped = min(end - block.address, block.size)
        if not self._take(mapped):
            return False
        pool.unmapped_of(block.stream).remove(block)
        block.mapped = True
        if mapped < block.size:
            rest = MemoryBlock(pool, block.stream, block.address + mapped, block.size - mapped, mapped=False)
            rest.insert_after(block)
            pool.unmapped_of(block.stream).add(rest)
            block.size = mapped
        self._join(block)
        pool.free_of(block.stream).add(block)
        return True

    # ------------------------------------------------------------------ giving back

    def _give_back(self, block: MemoryBlock) -> None:
        if self._expandable:
            self._unmap(block)
        elif block.previous is None and block.next is None:
            block.pool.free_of(block.stream).remove(block)
            self.reserved -= block.size

    def _unmap(self, block: MemoryBlock) -> None:
        """The whole pages of a free block (``unmap_block``)."""
        pool, page = block.pool, block.pool.page
        first = rounded(block.address, page)
        last = (block.address + block.size) // page * page
        if last <= first:
            return
        queue = pool.free_of(block.stream)
        queue.remove(block)
        end = block.address + block.size
        if block.address < first:
            before = MemoryBlock(pool, block.stream, block.address, first - block.address)
            before.previous, before.next = block.previous, block
            if block.previous is not None:
                block.previous.next = before
            block.previous = before
            queue.add(before)
        if last < end:
            after = MemoryBlock(pool, block.stream, last, end - last)
            after.insert_after(block)
            queue.add(after)
        block.address, block.size, block.mapped = first, last - first, False
        self._join(block)
        pool.unmapped_of(block.stream).add(block)
        self.reserved -= last - first

    def _release_oversize(self, pool: BlockPool, size: int, stream: int) -> bool:
        """Give back free oversize segments until there is enough (``release_available_cached_blocks``)."""
        if self._expandable:
            return False
        wanted = max(size, self._max_split)
        queue = pool.free_of(stream)
        whole = [b for b in queue.all() if b.previous is None and b.next is None and b.size >= self._max_split]
        fitting = [b for b in whole if b.size >= wanted]
        freed = 0
        for block in fitting[:1] or reversed(whole):
            freed += block.size
            self._give_back(block)
            if freed >= size:
                return True
        return False

    def _collect(self) -> None:
        """Give back segments that have been free for longest (``garbage_collect_cached_blocks``)."""
        if self._expandable or self.reserved <= self._collect_at:
            return
        target, freed = self.reserved - self._collect_at, 0
        pool = self._pools[1]
        free = [b for q in pool.free.values() for b in q.all() if b.previous is None and b.next is None]
        ages = {id(b): self._clock - self._freed_at.get(b.address, self._clock) for b in free}
        while free and freed < target:
            mean = sum(ages[id(b)] for b in free) / len(free)
            old = [b for b in free if ages[id(b)] >= mean]
            for block in old:
                freed += block.size
                self._give_back(block)
            free = [b for b in free if ages[id(b)] < mean]
