"""Goals against brute force: every plan of a small space is priced, and nothing better than the answer is among them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memcheck.what_if.remedies.changes import METHOD, UNCHANGED, CandidateChange, Priced, join
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.goals import clusters, search
from memcheck.what_if.search.space import NOTHING, Space, space_of, together
from tests.what_if.search.contexts import context_of

DENSE = """\
memcheck: 1
model: qwen2.5-0.5b
hardware: {gpu: rtx-4090, gpus_per_node: 4}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 1024, global_batch_size: 64, precision: fp16-mixed}
"""
SHARDED = """\
memcheck: 1
model: llama-3.2-3b
hardware: {gpu: a100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: huggingface, micro_batch_size: 1, sequence_length: 2048, global_batch_size: 32, loss: chunked}
"""
ADAPTERS = """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: rtx-4090, gpus_per_node: 2}
parallelism: {gradient_sync: every}
training:
  {framework: huggingface, method: lora, micro_batch_size: 1, sequence_length: 2048, global_batch_size: 16, loss: chunked}
"""
SERVED = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: rtx-4090, gpus_per_node: 4}
parallelism: {tensor: 4}
inference: {batch_size: 4, context_length: 8192}
"""
TRAINED = {"dense": DENSE, "sharded": SHARDED, "adapters": ADAPTERS}


def fitting(pricer: Pricer, space: Space) -> Iterator[Priced]:
    """Every plan of a space that fits, without any pruning."""
    for layout in space.layouts:
        for states in space.states:
            for steps in space.steps:
                priced = pricer.price(together(layout, states, steps), prune=False)
                if priced is not None and pricer.fits(priced):
                    yield priced


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_fewest_gpus(name: str) -> None:
    """On every smaller cluster no plan of the space fits; on the answer's none that fits is faster."""
    context = context_of(TRAINED[name])
    answer = search(Pricer(context), "gpus")
    best = answer.found[0]
    size = best.resolved.job.layout.world_size
    for nodes, gpus_per_node in clusters(context.layout, size):
        whole = Pricer(context)
        found = list(fitting(whole, space_of(context, UNCHANGED, nodes, gpus_per_node, faster=True)))
        if nodes * gpus_per_node < size:
            assert found == []
        else:
            assert min(p.slowdown for p in found if p.slowdown is not None) == best.slowdown


def reach(pricer: Pricer, way: CandidateChange, key: str, step: int, most: int) -> int:
    """The largest of all values up to ``most`` that fits, found by trying each of them."""
    largest = 0
    for value in range(step, most + 1, step):
        change = CandidateChange("largest", "", {key: value}, cost=METHOD)
        if key == "training.micro_batch_size":
            steps = {"training.global_batch_size": value * 64}  # a batch that every number of ranks divides
            change = change._replace(set={**change.set, **steps})
        priced = pricer.price(join(way, change) if way.set else change)
        if priced is not None and pricer.fits(priced):
            largest = value
    return largest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "goal", "key", "step"),
    [
        ("dense", "max-batch", "training.micro_batch_size", 1),
        ("adapters", "max-batch", "training.micro_batch_size", 1),
        ("dense", "max-sequence", "training.sequence_length", 1024),
        ("adapters", "max-sequence", "training.sequence_length", 1024),
    ],
)
def test_the_largest_value_of_training(name: str, goal: str, key: str, step: int) -> None:
    """Trying every value, up to a third beyond the answer, in every way to run a step finds no larger one."""
    context = context_of(TRAINED[name])
    best = search(Pricer(context), goal).found[0]
    value = getattr(best.resolved.job, key.rpartition(".")[2])
    assert value > step
    space = space_of(context, UNCHANGED)
    beyond = value + max(2, value // step // 3) * step
    pricer = Pricer(context)
    ways = [way for way in space.steps if key != "training.micro_batch_size" or key not in way.set]
    assert len(ways) > 1
    assert max(reach(pricer, way, key, step, beyond) for way in ways) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goal", "key", "step"),
    [("max-batch", "inference.batch_size", 1), ("max-sequence", "inference.context_length", 1024)],
)
def test_the_largest_value_of_serving(goal: str, key: str, step: int) -> None:
    """The same while serving: sequences at a time, and tokens of each."""
    context = context_of(SERVED)
    best = search(Pricer(context), goal).found[0]
    value = getattr(best.resolved.job, key.rpartition(".")[2])
    pricer = Pricer(context)
    ways = [way for way in space_of(context, UNCHANGED).steps if key not in way.set]
    assert max(reach(pricer, way, key, step, value + 3 * step) for way in (NOTHING, *ways)) == value


HOPELESS = {
    "mixture": """\
memcheck: 1
model: olmoe-1b-7b
hardware: {gpu: a10}
training: {framework: megatron, micro_batch_size: 1, sequence_length: 4096, global_batch_size: 64}
""",
    "adapters": """\
memcheck: 1
model: llama-3.1-70b
hardware: {gpu: rtx-4090}
training: {framework: huggingface, method: qlora, micro_batch_size: 1, sequence_length: 2048, global_batch_size: 64}
""",
    "long context": """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: a100-40gb}
training: {framework: torchtitan, micro_batch_size: 1, sequence_length: 131072, global_batch_size: 32}
""",
    "serving": """\
memcheck: 1
model: llama-3.1-405b
hardware: {gpu: a100-40gb, gpus_per_node: 8}
parallelism: {tensor: 8}
inference: {batch_size: 1, context_length: 8192}
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOPELESS)
def test_the_way_out_is_named_though_the_hardware_is_kept(name: str) -> None:
    """``--keep hardware`` forbids other hardware to the answer; which cluster would do is said all the same."""
    context = context_of(HOPELESS[name])
    answer = search(Pricer(context, ("hardware",)), "max-batch")
    assert answer.found == ()
    assert answer.smallest is not None
    assert answer.smallest.resolved.gpu.name == context.resolved.gpu.name


@pytest.mark.slow
@pytest.mark.parametrize("name", HOPELESS)
@pytest.mark.parametrize("goal", ["fit", "gpus", "max-batch", "max-sequence"])
def test_when_nothing_fits_the_smallest_cluster_is_named(name: str, goal: str) -> None:
    """Nothing of this hardware, and the cluster that would do fits; the one before it, plan by plan, does not."""
    context = context_of(HOPELESS[name])
    answer = search(Pricer(context), goal)
    same = [
        p
        for p in answer.found
        if p.resolved.gpu.name == context.resolved.gpu.name
        and p.resolved.job.layout.world_size <= context.layout.world_size
        and (goal != "fit" or p.candidate.cost == UNCHANGED)
    ]
    assert same == []
    if goal == "fit" and answer.smallest is None:  # another GPU, or another training, fits
        assert answer.found
        return
    assert answer.smallest is not None
    assert answer.smallest.estimate.utilization <= 0.9
    size = answer.smallest.resolved.job.layout.world_size
    assert size > context.layout.world_size
    smaller = list(clusters(context.layout, size - 1, above=context.layout.world_size))[-1:]
    for nodes, gpus_per_node in smaller:
        space = space_of(context, UNCHANGED, nodes, gpus_per_node)
        assert next(fitting(Pricer(context), space), None) is None
