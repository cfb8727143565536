"""The replay of torch's caching allocator."""

from __future__ import annotations

import random

import pytest

from memcheck.accounts.state import MIB
from memcheck.verify.replay.allocator import Allocator, OutOfMemory
from memcheck.verify.replay.runs import AllocationSequence, Event, failure, held, peaks

SIZES = (512, 4096, 300_000, MIB, 3 * MIB, 9 * MIB, 16 * MIB, 50 * MIB + 512)


def drawn(seed: int, length: int = 600) -> list[Event]:
    """Blocks of two streams that come and go at random."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    events: list[Event] = []
    live: list[int] = []
    for name in range(length):
        if live and dice.random() < 0.5:
            events.append((live.pop(dice.randrange(len(live))), 0, 0))
        else:
            events.append((name, dice.choice(SIZES), dice.randrange(2)))
            live.append(name)
    return events


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_segments_have_the_sizes_of_get_allocation_size(size: int, segment: int) -> None:
    """Small blocks take 2 MiB of the driver, those below 10 MiB 20 MiB, others their size rounded up to 2 MiB."""
    allocator = Allocator()
    allocator.allocate(0, size)
    assert allocator.reserved == segment


def test_a_remainder_of_more_than_a_mib_is_split_off() -> None:
    """A free large block is cut where more than 1 MiB remains; what remains otherwise counts as allocated."""
    allocator = Allocator()
    allocator.allocate(0, 40 * MIB)
    allocator.free(0)
    allocator.allocate(1, 30 * MIB)
    assert allocator.allocated == 30 * MIB
    allocator.allocate(2, 9 * MIB + 512)
    assert (allocator.allocated, allocator.reserved) == (40 * MIB, 40 * MIB)


def test_best_fit_takes_the_smallest_block_that_is_large_enough() -> None:
    """Of two free segments the one that fits closer is used, whichever came first."""
    allocator = Allocator()
    allocator.allocate(0, 60 * MIB)
    allocator.allocate(1, 40 * MIB)
    allocator.free(0)
    allocator.free(1)
    allocator.allocate(2, 40 * MIB)
    allocator.allocate(3, 60 * MIB)
    assert allocator.reserved == 100 * MIB


def test_no_stream_uses_the_blocks_of_another() -> None:
    """What one stream freed is no block of the other."""
    for expandable in (False, True):
        allocator = Allocator(expandable=expandable)
        allocator.allocate(0, 40 * MIB, 1)
        allocator.free(0)
        allocator.allocate(1, 40 * MIB, 2)
        assert allocator.reserved == 80 * MIB


def test_a_recorded_stream_delays_a_block_until_its_events_have_happened() -> None:
    """After ``record_stream`` a freed block is no one's until the streams are synchronised."""
    allocator = Allocator()
    allocator.allocate(0, 40 * MIB)
    allocator.record_stream(0, 1)
    allocator.free(0)
    allocator.allocate(1, 40 * MIB)
    assert allocator.reserved == 80 * MIB
    allocator.synchronize()
    allocator.allocate(2, 40 * MIB)
    assert allocator.reserved == 80 * MIB


def test_waiting_for_an_event_frees_what_was_freed_before_it() -> None:
    """A program that waits for one event knows nothing of blocks that were let go of after it."""
    allocator = Allocator()
    for name in (0, 1):
        allocator.allocate(name, 40 * MIB)
        allocator.record_stream(name, 1)
    allocator.free(0)
    allocator.record_event(9)
    allocator.free(1)
    allocator.synchronize(9)
    assert allocator.free_bytes() == 40 * MIB
    allocator.synchronize()
    assert allocator.free_bytes() == 80 * MIB


def test_a_run_hands_on_streams_and_events() -> None:
    """What another stream works on is used again once the program has waited for an event behind it."""

    def reserved(*, waits: bool) -> int:
        asked = AllocationSequence()
        asked.allocated(1, 40 * MIB)
        asked.recorded(1, "another")
        asked.freed(1)
        event = asked.marked()
        if waits:
            asked.awaited(event)
        asked.allocated(2, 40 * MIB)
        assert peaks(asked.events)[0] == 40 * MIB
        return held(asked.events, expandable=False).reserved

    assert reserved(waits=True) == 40 * MIB
    assert reserved(waits=False) == 80 * MIB


def test_free_segments_go_back_before_an_allocation_fails() -> None:
    """On a full GPU a whole free segment makes room; one that holds a live block does not."""
    allocator = Allocator(capacity=100 * MIB)
    allocator.allocate(0, 60 * MIB)
    allocator.free(0)
    allocator.allocate(1, 90 * MIB)
    assert allocator.reserved == 90 * MIB
    stuck = Allocator(capacity=100 * MIB)
    stuck.allocate(0, 60 * MIB)
    stuck.free(0)
    stuck.allocate(1, 12 * MIB)
    with pytest.raises(OutOfMemory):
        stuck.allocate(2, 50 * MIB)


def test_waiting_blocks_are_waited_for_before_an_allocation_fails() -> None:
    """``release_cached_blocks`` synchronises first."""
    allocator = Allocator(capacity=50 * MIB)
    allocator.allocate(0, 40 * MIB)
    allocator.record_stream(0, 1)
    allocator.free(0)
    allocator.allocate(1, 44 * MIB)
    assert allocator.reserved == 44 * MIB


def test_expandable_segments_grow_in_place_and_give_pages_back() -> None:
    """A free end grows to the next page, and the free pages around a live block are returned."""
    allocator = Allocator(expandable=True, capacity=200 * MIB)
    allocator.allocate(0, 30 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.free(0)
    allocator.allocate(1, 50 * MIB)
    assert allocator.reserved == 60 * MIB
    allocator.allocate(2, 100 * MIB)
    allocator.free(1)
    allocator.allocate(3, 90 * MIB)  # 160 are mapped, two whole pages of the free 50 go back
    assert allocator.reserved == 200 * MIB


def test_a_largest_split_size_keeps_large_blocks_whole() -> None:
    """With ``max_split_size_mb`` a block of that size serves no smaller one."""
    allocator = Allocator(max_split=100 * MIB)
    allocator.allocate(0, 120 * MIB)
    allocator.free(0)
    allocator.allocate(1, 50 * MIB)
    assert allocator.reserved == 170 * MIB
    allocator.allocate(2, 110 * MIB)
    assert allocator.reserved == 170 * MIB


def test_garbage_is_collected_above_the_threshold() -> None:
    """With ``garbage_collection_threshold`` a free segment goes back although there is room."""
    allocator = Allocator(capacity=200 * MIB, collect_above=0.4)
    allocator.allocate(0, 90 * MIB)
    allocator.free(0)
    allocator.allocate(1, 100 * MIB)
    assert allocator.reserved == 100 * MIB


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_every_byte_is_accounted_for(seed: int, expandable: bool) -> None:
    """Whatever came and went, live blocks and free ones add up to what is reserved, and all of it can go back."""
    events = drawn(seed)
    allocator = Allocator(expandable=expandable)
    alive = set()
    for name, size, stream in events:
        if size:
            allocator.allocate(name, size, stream)
            alive.add(name)
        else:
            allocator.free(name)
            alive.discard(name)
        assert allocator.reserved >= allocator.allocated
    assert allocator.free_bytes() + allocator.allocated == allocator.reserved
    for name in alive:
        allocator.free(name)
    allocator.release()
    assert (allocator.reserved, allocator.allocated) == (0, 0)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_lies_between_live_and_reserved(seed: int, expandable: bool) -> None:
    """The smallest memory is enough, holds what is live, and is no more than is reserved with memory to spare."""
    events = drawn(seed)
    found = held(events, expandable=expandable)
    assert found.allocated <= found.needed <= found.reserved
    assert failure(events, found.needed, expandable=expandable) is None
    assert failure(events, found.allocated - 1, expandable=expandable) is not None


def test_each_stream_has_its_own_peak() -> None:
    """Streams reach their peaks at different moments, so that together they hold more than ever lives at once."""
    where = ["default"]
    asked = AllocationSequence(lambda: where[0])
    asked.allocated(1, 40 * MIB)
    asked.freed(1)
    where[0] = "gather"
    asked.allocated(2, 30 * MIB)
    asked.freed(2)
    asked.freed(3)  # never had a block
    assert peaks(asked.events) == (40 * MIB, {0: 40 * MIB, 1: 30 * MIB})
    found = held(asked.events, expandable=False)
    assert (found.reserved, found.needed, found.streams) == (70 * MIB, 40 * MIB, (40 * MIB, 30 * MIB))
