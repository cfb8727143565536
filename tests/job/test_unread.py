"""Values that a reduced job was reduced by can be carried along, and in no way be read."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

import pytest

from benchmarks.hostile_draw import KINDS
from memcheck.job.keys import UNREAD
from memcheck.judge import Gate, check_file

READS: dict[str, Callable[[], object]] = {
    "attribute": lambda: UNREAD.mode,
    "item": lambda: UNREAD[0],
    "equal": lambda: UNREAD == "none",
    "unequal": lambda: UNREAD != 1,
    "less": lambda: UNREAD < 2,
    "truth": lambda: bool(UNREAD),
    "number": lambda: int(UNREAD),
    "text": lambda: str(UNREAD),
    "sum": lambda: 1 + UNREAD,
    "product": lambda: UNREAD * 2,
    "quotient": lambda: 8 // UNREAD,
    "negative": lambda: operator.neg(UNREAD),
    "least": lambda: min(UNREAD, 3),
    "iteration": lambda: list(UNREAD),
    "member": lambda: "x" in UNREAD,
}
PLANS = 1500


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_whoever_reads_it_is_told(read: Callable[[], object]) -> None:
    """Looked into, compared, counted with, asked whether it is true: each is an error."""
    with pytest.raises(AssertionError, match="reduced by"):
        read()


def test_it_is_part_of_keys() -> None:
    """Records that hold it are found again, and differ from those that hold something else."""
    known = {("a", UNREAD): 1}
    assert known["a", UNREAD] == 1
    assert ("a", "none") not in known


@pytest.mark.slow
def test_no_estimate_reads_what_its_keys_leave_out() -> None:
    """Plans drawn over frameworks, models, layouts and options are judged without a defect."""
    priced = 0
    for seed in range(PLANS):
        drawn = KINDS["plan"](random.Random(f"unread {seed}"))  # noqa: S311 - which plans are drawn is no secret
        results, defects = check_file("plan.yaml", drawn.files["plan.yaml"], Gate())
        assert defects == []
        priced += results[0].estimate is not None
    assert priced > PLANS / 6
