"""More live tensors are never a smaller need: what ``diff`` and ``--fail-on-increase`` rest on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.score import resolved
from memcheck.accounts.estimate import Estimate
from memcheck.cli.review.diff.compare import Change, Side, side_of
from memcheck.cli.review.diff.report import signed_gib
from memcheck.judge import Gate, check_document
from memcheck.memory.allocator import allocator_group
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, with_changes

PLAN = """\
memcheck: 1
model: {name: llama-3.2-1b, overrides: {num_hidden_layers: 4}}
hardware: {gpu: a100-40gb, gpus_per_node: 8}
parallelism: {zero_stage: 0}
training:
  framework: pytorch
  method: full
  micro_batch_size: 1
  sequence_length: 1024
  precision: bf16-mixed
"""
STACK: dict[str, tuple[object, ...]] = {
    "training.framework": ("pytorch", "huggingface", "torchtitan", "deepspeed"),
    "training.expandable_segments": (True, False),
    "training.method": ("full", "lora"),
}
"""What decides how the allocator works, which moves the need by itself: drawn, and not edited."""
LAYOUT: dict[str, tuple[object, ...]] = {"parallelism.zero_stage": (0, 1, 2, 3), "hardware.gpus_per_node": (1, 2, 8)}
"""What decides which communicators and streams there are: edited, too, and then without what these two take."""
EDITS: dict[str, tuple[object, ...]] = {
    "parallelism.reshard_after_forward": (True, False),
    "training.micro_batch_size": (1, 2, 3, 5, 8, 13, 40),
    "training.sequence_length": (512, 1024, 1536, 4096, 6144, 16384),
    "training.gradient_accumulation_steps": (1, 4),
    "training.precision": ("bf16-mixed", "fp32", "bf16-pure"),
    "training.optimizer": ("adamw", "sgd", "adamw-8bit", {"name": "adamw", "implementation": "foreach"}),
    "training.activation_checkpointing": ("none", "full"),
    "training.attention": ("sdpa", "eager"),
    "training.loss": ("standard", "chunked"),
    "training.clip_grad_norm": (True, False),
    "model.overrides.num_hidden_layers": (2, 4, 6),
    "model.overrides.vocab_size": (32000, 128256),
    "model.overrides.intermediate_size": (5632, 8192),
}


def side(document: Document, changes: dict[str, Any]) -> tuple[Estimate, Side] | None:
    """The estimate with values set, as ``diff`` has it; None for what is no plan."""
    result = check_document(with_changes(document, changes), Gate())
    return None if result.estimate is None else (result.estimate, side_of(result, "p.yaml", "p.yaml"))


@pytest.mark.parametrize(
    ("edits", "seed"),
    [(20, 20261122), *(pytest.param(2000, seed, marks=pytest.mark.slow) for seed in (20261122, 20261123, 20261124))],
)
def test_a_need_grows_with_what_is_live(edits: int, seed: int) -> None:
    """Whatever is edited, one key or two: if ``allocated`` rises, ``needed`` does, and ``diff`` never tells it as +0.00.

    What is seen may stand still on a full GPU; nothing goes by it. An optimizer's lists may rise above a moment that
    still needs more than they do, because less can be returned there: then the need is that moment's, and stays. An
    edit of the layout may do without a communicator, or without a stream whose blocks no other may use: the need then
    falls by no more than each of them took. Between kinds of steps nothing is said: another share of them is stuck.
    """
    (document,) = load_documents("p.yaml", PLAN.encode())
    draw = random.Random(seed)  # noqa: S311 - the same plans every time
    raised = 0
    while raised < edits:
        start = {key: draw.choice(values) for key, values in (STACK | LAYOUT | EDITS).items()}
        edited = LAYOUT | EDITS
        keys = draw.sample(sorted(edited), draw.choice((1, 1, 2)))
        both = start, {**start, **{k: draw.choice(edited[k]) for k in keys}}
        sides = [side(document, values) for values in both]
        judged = [each for each in sides if each is not None]
        if len(judged) < 2 or judged[0][0].allocated_bytes == judged[1][0].allocated_bytes:
            continue
        raised += 1
        (low, before), (high, after) = sorted(judged, key=lambda each: each[0].allocated_bytes)
        delta = Change(before, after).delta_bytes
        told = f"{start} with {keys}: {low.allocated_bytes:,} -> {high.allocated_bytes:,} live"
        assert delta is not None, told
        if not LAYOUT.keys().isdisjoint(keys):
            kinds = [allocator_group(resolved(with_changes(document, values).values)[0]) for values in both]
            if bool(apart(low)[1]) != bool(apart(high)[1]):
                continue
            if kinds[0] == kinds[1]:
                gone = [max(0, was - now) for was, now in zip(apart(low), apart(high), strict=True)]
                assert delta >= -sum(gone), told
            continue
        assert delta >= 0, told
        if not delta and high.ranks[0].pools.before:
            assert before_lists(high) == before_lists(low), told
            continue
        assert float(signed_gib(delta).replace(",", "")) > 0, told


def apart(found: Estimate) -> tuple[int, int]:
    """What communicators take, and the blocks of all streams but the default one."""
    return found.components_bytes["context_and_nccl"], found.ranks[0].pools.others


def before_lists(found: Estimate) -> int:
    """What lives at the highest moment outside of an optimizer with lists."""
    return found.ranks[0].pools.before or found.allocated_bytes
