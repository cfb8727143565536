"""Every move is reached by a plan that it mends: suggested, written into the file, read again, and passed by ``check``."""

from __future__ import annotations

import pytest

from memcheck.configs.plan_text import grown, leaves
from memcheck.judge import Gate, check_file
from memcheck.plan.read import load_documents
from memcheck.plan.value_edits import edited
from memcheck.rules.result import PASSED
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.changes import CandidateChange
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.space import singles, space_of
from memcheck.what_if.suggest.run import SUGGESTED, suggest
from tests.what_if.search.contexts import context_of
from tests.what_if.search.test_dimensions import DIMENSIONS, plan_of
from tests.what_if.search.test_expert_tensor import PLAN as EXPERTS

GATE = Gate(ignore=("MEM601",))
"""Plans are made to fail by a GPU of the catalog with more memory than it has, which is not what is tested."""
FOLLOW = ("training.gradient_accumulation_steps", "parallelism.gradient_sync")
"""Keys that follow from a move, and are no moves here."""
CLOSE = frozenset({"MEM103", "MEM104"})
FRAMEWORK = {"selective recompute": "torchtitan"}
"""Where the first framework's plan is none that the move mends."""
TOGETHER = {"parallelism.pipeline_schedule": ("parallelism.virtual_stages",)}
"""Keys that change with another."""
ANY = object()
SMALL = """\
memcheck: 1
model: llama-3.2-3b
hardware: {gpu: a100-40gb}
training:
  framework: pytorch
  micro_batch_size: 1
  sequence_length: 1024
  optimizer: {name: adamw, implementation: foreach}
"""
"""Its peak is the optimizer's step."""
MORE = {
    "implementation": ("training.optimizer.implementation", "fused", SMALL),
    "GPU": ("hardware.gpu.name", ANY, SMALL),
    "expert tensor": ("parallelism.expert_tensor", 4, EXPERTS.partition("  options")[0]),
    "reduced micro-batches": (
        "parallelism.gradient_sync",
        "every",
        plan_of("pytorch", "micro-batch").replace(
            "parallelism: {}", "parallelism: {zero_stage: 3, gradient_sync: last}"
        ),
    ),
    "allocator": ("training.expandable_segments", True, plan_of("pytorch", "micro-batch")),
    "views of buckets": ("parallelism.gradient_as_bucket_view", True, plan_of("pytorch", "micro-batch")),
}
"""Moves beside those of the dimensions: key, value, plan."""
CASES = {
    name: (case[0], case[1], plan_of(FRAMEWORK.get(name, min(case[2])), name)) for name, case in DIMENSIONS.items()
} | MORE


def moves(context: RuleContext) -> list[CandidateChange]:
    """Every change that a search may make alone."""
    space = space_of(context)
    return [*singles(context), *space.layouts, *space.states, *space.steps]


def fields(changes: dict[str, object]) -> dict[str, object]:
    """Changes by field, whether they are written in one word or not."""
    return dict(leaves(grown({}, changes)))


def pinned(context: RuleContext, key: str) -> tuple[str, ...]:
    """Every key that a search may change, but for one and those that follow from it."""
    keys = {each for candidate in moves(context) for each in fields(candidate.set)}
    free = (key, *TOGETHER.get(key, ()), *FOLLOW)
    return tuple(sorted(each for each in keys if each not in free))


def says(changes: dict[str, object], key: str, value: object) -> bool:
    """Whether changes set a key to a value."""
    found = fields(changes)
    return key in found and (value is ANY or str(found[key]) == str(value))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_that_it_mends_reaches_it(name: str) -> None:
    """With a limit between what is needed and what the move leaves, and nothing else to change, it is suggested; the
    edited file reads as the plan with the move, breaks no rule and passes."""
    key, value, text = CASES[name]
    context = context_of(text)
    pricer = Pricer(context)
    assert context.estimate is not None
    before = context.estimate.utilization
    free = {key, *TOGETHER.get(key, ())}
    alone = [c for c in moves(context) if says(c.set, key, value) and set(fields(c.set)) <= free]
    priced = next(p for c in alone if (p := pricer.price(c, prune=False)) is not None)
    after = priced.estimate.utilization
    assert after < before
    scale = (before + after) / 2
    text = text.rstrip("\n") + f"\npolicy: {{fail_above: {min(scale, 1.0):.5f}}}\n"
    if scale > 1:  # a GPU that is as much larger
        text = larger(text, context, scale)
        context = context_of(text)
    data = text.encode()
    (document,) = load_documents("plan.yaml", data)
    answer = suggest(document, data, GATE, keep=pinned(context, key), top=8)
    assert answer.status == SUGGESTED, (before, after, answer.tally)
    chosen = [item for item in answer.found if says(item.remedy.set, key, value)]
    chosen = chosen or [item for item in answer.found if says(item.remedy.set, key, ANY)]
    assert chosen, [item.remedy.set for item in answer.found]
    remedy = chosen[0].remedy
    assert remedy.edits
    written = edited(data, remedy.edits)
    (again,) = load_documents("plan.yaml", written)
    values = dict(leaves(again.values))  # type: ignore[arg-type]
    assert all(values[each] == new for each, new in fields(remedy.set).items() if each != "parallelism.shard_group")
    old, _ = check_file("plan.yaml", data, GATE)
    (result,), _ = check_file("plan.yaml", written, GATE)
    assert result.status == PASSED
    assert {f.code for f in result.findings} - CLOSE <= {f.code for f in old[0].findings}


def larger(text: str, context: RuleContext, scale: float) -> str:
    """The plan on a GPU of the same kind with as much more memory."""
    gpu = context.resolved.gpu
    described = f"{{name: {gpu.name}, memory_gib: {gpu.memory_bytes / 2**30 * scale * 1.02:.3f}}}"
    return text.replace(f"gpu: {gpu.name}", f"gpu: {described}").replace("fail_above: 1.00000", "fail_above: 0.98")
