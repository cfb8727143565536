"""A search changes only what the changed plan reads."""

from __future__ import annotations

import pytest

from memcheck.what_if.remedies.candidates import same_hardware
from memcheck.what_if.remedies.changes import CandidateChange
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.space import RESHARD, training_layouts
from tests.what_if.search.contexts import PIPELINED, SMALL, TITAN, context_of

VIEW = "parallelism.gradient_as_bucket_view"
SHARDED = {"parallelism.zero_stage": 3}


@pytest.mark.parametrize(("framework", "offered"), [("torchtitan", True), ("deepspeed", False), ("megatron", False)])
def test_gathered_parameters_are_kept_where_they_can_be(framework: str, offered: bool) -> None:
    """`reshard_after_forward: false` is tried for frameworks that have it, and for no other."""
    context = context_of(TITAN.replace("torchtitan", framework))
    job = context.training
    assert job is not None
    layouts = training_layouts(context, job, faster=True)
    assert any(RESHARD in layout.set for layout in layouts) == offered


@pytest.mark.parametrize(("framework", "kinds"), [("pytorch", {"buckets", "allocator"}), ("megatron", set())])
def test_changes_are_offered_where_something_reads_them(framework: str, kinds: set[str]) -> None:
    """Bucket views need DDP, and the allocator's setting a framework that was measured with both."""
    context = context_of(SMALL.replace("pytorch", framework))
    job = context.training
    assert job is not None
    assert {c.kind for c in same_hardware(context, job)} & {"buckets", "allocator"} == kinds


def test_a_change_that_loses_its_reader_is_left_out() -> None:
    """Bucket views beside `zero_stage: 3` are nothing: the joined change is the sharding alone."""
    pricer = Pricer(context_of(SMALL))
    assert pricer.complete(CandidateChange("x", "", {VIEW: True})) == {VIEW: True}
    assert pricer.complete(CandidateChange("x", "", {VIEW: True, **SHARDED})) == SHARDED


def test_a_written_key_that_loses_its_reader_goes_back() -> None:
    """What the plan states, and the changed plan would not read, is set to what says nothing, and stays legal."""
    text = SMALL.replace("gpus_per_node: 4}", "gpus_per_node: 4}\nparallelism: {gradient_as_bucket_view: true}")
    pricer = Pricer(context_of(text))
    candidate = CandidateChange("x", "", SHARDED)
    assert pricer.complete(candidate) == {**SHARDED, VIEW: False}
    assert pricer.legal(candidate) is not None


def test_a_schedule_goes_with_its_pipeline() -> None:
    """Without a pipeline the stated schedule goes back to the default."""
    text = PIPELINED.replace("{tensor: 4}", "{pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 2}")
    changes = Pricer(context_of(text)).complete(
        CandidateChange("x", "", {"parallelism.pipeline": 1, "parallelism.virtual_stages": 1})
    )
    assert changes is not None
    assert changes["parallelism.pipeline_schedule"] == "1f1b"
