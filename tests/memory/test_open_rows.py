"""Rows that a plan leaves open count as full, and the intervals cover padded ones."""

from __future__ import annotations

import json

import pytest

from memcheck.accounts.estimate import Estimate
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding
from memcheck.rules.result import PlanResult

GIB = 2**30


def priced(gib: float = 1000, policy: dict[str, object] | None = None, **training: object) -> PlanResult:
    """Llama 3.2 1B with a head for labels, on a card of so much memory."""
    step = {
        "framework": "pytorch",
        "head": "classification",
        "micro_batch_size": 8,
        "sequence_length": 1024,
        "precision": "bf16-pure",
    }
    plan = {
        "memcheck": 1,
        "model": "llama-3.2-1b",
        "hardware": {"gpu": {"name": "lab", "memory_gib": gib}},
        "training": {**step, **training},
        "policy": policy or {},
    }
    (result,), traces = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    assert not traces
    return result


def answer(**training: object) -> Estimate:
    """Its estimate."""
    found = priced(**training).estimate
    assert found is not None
    return found


def why(result: PlanResult) -> str:
    """What is said of the assumed rows; empty where none are assumed."""
    return next((each.why for each in result.assumptions if each.key == "training.sequences"), "")


def finding(gib: float, policy: dict[str, object] | None = None, **training: object) -> Finding | None:
    """The warning about its memory."""
    result = priced(gib, policy, **training)
    assert result.status == "passed"
    return next((each for each in result.findings if each.code.startswith("MEM10")), None)


@pytest.mark.parametrize("head", ["classification", "token-classification", "embedding", "reward"])
@pytest.mark.parametrize("framework", ["pytorch", "huggingface", "deepspeed"])
def test_the_figure_is_of_full_rows_and_the_upper_ends_are_of_padded_ones(framework: str, head: str) -> None:
    """The lower ends stay."""
    step = {"framework": framework, "head": head}
    left_open, full, padded = answer(**step), *(answer(**step, sequences=each) for each in ("packed", "padded"))
    assert full.allocated_bytes < padded.allocated_bytes
    assert left_open.allocated_bytes == full.allocated_bytes
    assert left_open.needed_bytes == full.needed_bytes
    assert left_open.needed_interval_bytes == (full.needed_interval_bytes[0], padded.needed_interval_bytes[1])
    assert left_open.interval_bytes == (full.interval_bytes[0], padded.interval_bytes[1])
    assert left_open.padded_bytes == padded.needed_bytes
    assert not full.padded_bytes
    assert not padded.padded_bytes


def test_the_assumption_is_listed_with_what_padded_rows_need_on_top() -> None:
    """For that plan; what it states is no assumption."""
    more = (answer(sequences="padded").needed_bytes - answer(sequences="packed").needed_bytes) / GIB
    assert "rows are taken as full" in why(priced())
    assert why(priced()).endswith(f"which needs {more:.2f} GiB more")
    assert not why(priced(sequences="packed"))


def test_a_row_that_is_alone_is_not_padded() -> None:
    """It needs the same either way."""
    alone = priced(micro_batch_size=1)
    assert alone.estimate is not None
    assert not alone.estimate.padded_bytes
    assert why(alone)
    assert "more" not in why(alone).rpartition(",")[2]
    full, padded = (answer(micro_batch_size=1, sequences=each) for each in ("packed", "padded"))
    assert full.needed_bytes == padded.needed_bytes == alone.estimate.needed_bytes
    assert alone.estimate.needed_interval_bytes == full.needed_interval_bytes
    assert alone.estimate.interval_bytes[1] == max(full.interval_bytes[1], padded.interval_bytes[1])


def test_the_worst_rank_alone_has_the_same_figures() -> None:
    """A search asks for that rank, and for several batches in turn."""
    from memcheck.memory.estimate import Estimator
    from tests.job.test_resolve import resolved

    step = "{head: classification, micro_batch_size: 1, sequence_length: 1024}"
    found = resolved(f"model: llama-3.2-1b\nhardware: {{gpu: h100-80gb}}\ntraining: {step}\n")
    estimator = Estimator(found.job, found.gpu, found.overhead)
    for rows in (1, 32, 16):
        job = found.job._replace(micro_batch_size=rows)  # type: ignore[call-arg]
        one, every = estimator.worst(job), Estimator(job, found.gpu, found.overhead).ranks(job)
        assert one._replace(ranks=()) == every._replace(ranks=())
        assert bool(one.padded_bytes) is (rows > 1)


def test_a_limit_that_padded_rows_cross_is_named() -> None:
    """Also where full rows are below the threshold for warnings; the answer is to state the key."""
    need, other = answer(), answer(sequences="padded")
    card = other.needed_interval_bytes[1] / GIB + 0.05
    assert other.needed_bytes > 0.95 * card * GIB
    below = {"warn_above": need.needed_bytes / GIB / card + 0.005}
    found = finding(card, below)
    assert found is not None
    assert found.code == "MEM104"
    assert (
        "a default decides: with `training.sequences: padded` instead of `packed` the plan needs "
        f"{other.needed_bytes / GIB:.2f} GiB" in found.message
    )
    assert ", above the limit of 95.0%" in found.message
    assert found.help.startswith("state `training.sequences`")
    assert not found.remedies
    full = answer(sequences="packed")
    assert (full.needed_interval_bytes[1] <= 0.95 * card * GIB) == (finding(card, below, sequences="packed") is None)


def test_an_interval_beyond_the_capacity_names_the_default_too() -> None:
    """The upper end is that of padded rows."""
    card = answer(sequences="padded").needed_bytes / GIB + 0.05
    found = finding(card, {"fail_above": 0.98, "warn_above": 0.98})
    assert found is not None
    assert found.code == "MEM104"
    assert "; a default decides: with `training.sequences: padded`" in found.message
    assert finding(card, {"fail_above": 0.98, "warn_above": 0.98}, sequences="packed") is None


def test_nothing_is_said_where_both_pass() -> None:
    """Or where full rows are too much already."""
    assert finding(100) is None
    too_large = priced(16)
    assert too_large.status == "failed"
    assert all("a default decides" not in each.message for each in too_large.findings)


def test_padded_rows_that_a_trainer_assumes_of_encoders_are_named_where_they_are_too_much() -> None:
    """T5 under transformers' Trainer, whose biases are made for every row then."""
    plan = {
        "memcheck": 1,
        "model": "t5-large",
        "hardware": {"gpu": {"name": "lab", "memory_gib": 60}},
        "training": {"framework": "huggingface", "micro_batch_size": 16, "sequence_length": 1024, "precision": "bf16-pure"},
    }  # fmt: skip
    (result,), _ = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    (found,) = [each for each in result.findings if each.code == "MEM108"]
    assert "with `training.sequences: packed` instead of `padded` the plan needs" in found.message
    assert found.message.endswith("and passes")
