"""``training.sequences``: whose rows are padded where a plan does not say how they lie."""

from __future__ import annotations

import pytest

from memcheck.job.types import TrainingJob
from tests.job.test_resolve import resolved

PLAN = "model: {}\nhardware: {{gpu: h100-80gb}}\ntraining: {{micro_batch_size: 4, sequence_length: 512{}}}\n"


@pytest.mark.parametrize(
    ("model", "more", "rows", "says"),
    [
        ("llama-3.2-1b", "", "packed", ""),
        ("t5-small", "", "padded", "rows of many lengths"),
        ("t5-small", ", framework: pytorch", "padded", "rows of many lengths"),
        ("t5-small", ", sequences: packed", "packed", ""),
        ("t5-small", ", attention: flash", "packed", "attention `flash`"),
        ("bert-base-uncased", ", attention: flash", "padded", "rows of many lengths"),
        ("bert-base-uncased", "", "padded", "rows of many lengths"),
        ("bert-base-uncased", ", framework: pytorch", "packed", "rows of one length"),
        ("bert-base-uncased", ", framework: pytorch, head: classification", "padded", "rows of many lengths"),
        ("llama-3.2-1b", ", head: classification", "padded", "scored texts"),
        ("llama-3.2-1b", ", head: reward, framework: pytorch", "padded", "scored texts"),
        ("llama-3.2-1b", ", objective: reward", "padded", "scored texts"),
        ("llama-3.2-1b", ", head: embedding", "padded", "scored texts"),
        ("llama-3.2-1b", ", head: reward, sequences: packed", "packed", ""),
        ("qwen3-next-80b-a3b", ", head: reward", "packed", "priced as full ones"),
    ],
)
def test_rows_of_texts_are_padded(model: str, more: str, rows: str, says: str) -> None:
    """Of what reads in both directions, and of heads that score texts, unless the plan or the loop says otherwise;
    whichever it is, it is listed.
    """
    found = resolved(PLAN.format(model, more))
    assert isinstance(found.job, TrainingJob)
    assert found.job.sequences == rows
    said = {each.key: each.why for each in found.assumptions}.get("training.sequences", "")
    assert (says in said) if says else not said


def test_whisper_reads_sounds_that_nothing_masks() -> None:
    """Its encoder has as many rows for every sample."""
    found = resolved(PLAN.replace("512", "1500").format("whisper-tiny", ""))
    assert isinstance(found.job, TrainingJob)
    assert found.job.sequences == "packed"
