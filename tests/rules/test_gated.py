"""No rule waits for something that it does not need: what keeps a module unread never hides a finding."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.hostile_draw import KINDS
from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.plan.read import load_documents, read_plan
from memcheck.rules.run import make_context
from tests.rules.plans import found, overlooked


@pytest.mark.slow
def test_no_finding_of_a_plan_that_the_schema_takes_is_overlooked() -> None:
    """Over random plans of all keys, models, cards and frameworks: a rule that is not asked has nothing to say."""
    missed: dict[str, bytes] = {}
    asked = 0
    for index in range(3000):
        text = KINDS["plan"](Random(f"gated.{index}")).files["plan.yaml"]  # noqa: S311 - nothing is secret
        (document,) = load_documents("plan.yaml", text)
        plan, _ = read_plan(document)
        try:
            resolved = None if plan is None else resolve(plan, FRAMEWORKS, base_dir=".")
        except MemcheckError:
            continue
        if plan is None or resolved is None:
            continue
        asked += 1
        context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
        missed.update(dict.fromkeys(overlooked(context), text))
    assert missed == {}
    assert asked > 1000


@pytest.mark.parametrize("framework", ["huggingface", "pytorch", "deepspeed"])
def test_a_packed_base_is_not_sharded(framework: str) -> None:
    """Whatever else the framework has or lacks."""
    training = f"framework: {framework}, method: lora, base: {{held_in: int8}}, lora: {{rank: 8}}"
    assert [finding.severity for finding in found("MEM408", "zero_stage: 3", training)] == ["error"]
