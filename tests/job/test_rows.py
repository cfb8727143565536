"""``training.sequences``: whose rows are full, padded or open where a plan does not say how they lie."""

from __future__ import annotations

import pytest

from memcheck.job.lookup import ResolutionError
from memcheck.job.types import TrainingJob
from tests.job.test_resolve import resolved

OPEN = "taken as full"
PLAN = "model: {}\nhardware: {{gpu: h100-80gb}}\ntraining: {{micro_batch_size: 4, sequence_length: 512{}}}\n"


@pytest.mark.parametrize(
    ("model", "more", "rows", "says"),
    [
        ("llama-3.2-1b", "", "packed", ""),
        ("t5-small", "", "padded", "rows of many lengths"),
        ("t5-small", ", framework: pytorch", "packed", OPEN),
        ("t5-small", ", sequences: packed", "packed", ""),
        ("t5-small", ", attention: flash", "padded", "rows of many lengths"),  # its class has no FlashAttention
        ("gpt-oss-20b", ", attention: flash, sequences: padded", "packed", "attention `flash` are estimated as full"),
        ("bert-base-uncased", ", attention: flash", "padded", "rows of many lengths"),
        ("bert-base-uncased", "", "padded", "rows of many lengths"),
        ("bert-base-uncased", ", framework: pytorch", "packed", OPEN),
        ("bert-base-uncased", ", framework: pytorch, head: classification", "packed", OPEN),
        ("bert-base-uncased", ", head: classification", "padded", "rows of many lengths"),
        ("llama-3.2-1b", ", head: classification", "packed", OPEN),
        ("llama-3.2-1b", ", head: reward, framework: pytorch", "packed", OPEN),
        ("llama-3.2-1b", ", objective: reward", "packed", OPEN),
        ("llama-3.2-1b", ", head: embedding", "packed", OPEN),
        ("llama-3.2-1b", ", head: reward, sequences: packed", "packed", ""),
        ("qwen3-next-80b-a3b", ", head: reward", "packed", "estimated as full ones"),
    ],
)
def test_rows_are_full_unless_an_encoder_reads_what_a_trainer_pads(model: str, more: str, rows: str, says: str) -> None:
    """Rows that may be padded all the same are open: of heads that score texts, and of encoders in a loop of one's own.
    Whichever it is, it is listed.
    """
    found = resolved(PLAN.format(model, more))
    assert isinstance(found.job, TrainingJob)
    assert found.job.sequences == rows
    assert found.job.may_pad is (says == OPEN)
    said = {each.key: each.why for each in found.assumptions}.get("training.sequences", "")
    assert (says in said) if says else not said


def test_whisper_reads_sounds_that_nothing_masks() -> None:
    """Its encoder has as many rows for every sample."""
    found = resolved(PLAN.replace("512", "1500").format("whisper-tiny", ""))
    assert isinstance(found.job, TrainingJob)
    assert found.job.sequences == "packed"


@pytest.mark.parametrize("laid", ["", ", sequences: padded", ", sequences: unpacked", ", sequences: unpacked-masked"])
def test_a_step_is_estimated_at_the_longest_row(laid: str) -> None:
    """`sequence_length` is then only the limit: the job is that of a plan whose rows are no longer."""
    plan = PLAN.replace("sequence_length: 512", "sequence_length: 4096")
    found = resolved(plan.format("llama-3.2-1b", f", longest_row: 512{laid}")).job
    kept = laid or ", sequences: padded"
    assert found == resolved(PLAN.format("llama-3.2-1b", kept)).job


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (", longest_row: 513", "longest_row is 513 tokens, and sequence_length, the limit of a row, is 512"),
        (", longest_row: 100, sequences: packed", "`sequences: packed` are full"),
        (", longest_row: 100, sequences: flattened", "`sequences: flattened` are full"),
    ],
)
def test_a_longest_row_that_cannot_be_is_an_error_at_its_key(more: str, message: str) -> None:
    """No row is longer than the limit, and full rows have no other length."""
    with pytest.raises(ResolutionError) as raised:
        resolved(PLAN.format("llama-3.2-1b", more))
    (problem,) = raised.value.problems
    assert message in problem.message
    assert problem.pointer == "/training/longest_row"


@pytest.mark.parametrize(
    ("more", "grows"),
    [
        (", sequences: padded", True),
        (", sequences: unpacked", True),
        (", longest_row: 100", True),
        (", sequences: padded, expandable_segments: true", False),
        (", sequences: packed", False),
        (", sequences: flattened", False),
        ("", False),
    ],
)
def test_rows_of_many_lengths_grow_what_is_seen(more: str, grows: bool) -> None:
    """Under the allocator's default a note says so, with what keeps it down."""
    found = resolved(PLAN.format("llama-3.2-1b", more)).assumptions
    notes = [each.why for each in found if each.key == "training.expandable_segments" and "grows" in each.why]
    assert len(notes) == grows
    assert all("expandable segments, packed rows or the longest rows first" in each for each in notes)
