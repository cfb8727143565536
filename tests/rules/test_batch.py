"""Rules that are not marked as reading the batch find the same whatever it is: grids ask them once for all batches."""

from __future__ import annotations

import inspect
import random
import re
from pathlib import Path

import pytest

from benchmarks.draw import draw
from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.plan.read import build_plan, load_documents
from memcheck.plan.types import Plan
from memcheck.rules.checks import CHECKS
from memcheck.rules.run import Standing, check_layout, check_standing, make_context
from memcheck.rules.types import RuleContext
from memcheck.what_if.variants import BATCH
from tests.rules.plans import overlooked

EXAMPLES = Path(__file__).parents[2] / "examples"
ASKED = [each for each in CHECKS if not each.needs_estimate]
READS = re.compile(rf"\.({'|'.join(BATCH)})\b")


def context(plan: Plan) -> RuleContext | None:
    """What rules look at, in a document that has no marks of these keys."""
    path = EXAMPLES / "llama-3.1-8b-fsdp-8xh100.yaml"
    document = load_documents(str(path), path.read_bytes())[0]
    try:
        resolved = resolve(plan, FRAMEWORKS, base_dir=str(EXAMPLES))
    except MemcheckError:
        return None
    return make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)


def other_batch(plan: Plan, chance: random.Random) -> Plan:
    """The plan with another one."""
    assert plan.training is not None
    steps = chance.choice([{"gradient_accumulation_steps": chance.randint(1, 9)}, {"global_batch_size": 96}, {}])
    batch = {"micro_batch_size": chance.randint(1, 9), "sequence_length": chance.choice([1, 777, 4096, 10**6])}
    return plan._replace(training=plan.training._replace(**{**dict.fromkeys(BATCH), **batch, **steps}))


@pytest.mark.slow
def test_other_rules_find_the_same_for_every_batch() -> None:
    """Of random plans, legal and not, each with three batches; and most of them find something for some plan."""
    chance = random.Random(11)  # noqa: S311 - which batches are tried is no secret
    seen: set[str] = set()
    for number in range(300):
        plan = build_plan(draw(77, number))
        spoiled = {"tensor": chance.choice([1, 3, 7]), "pipeline": chance.choice([1, 5]), "zero_stage": 3}
        for one in (plan, plan._replace(parallelism=plan.parallelism._replace(**spoiled))):
            first = context(one)
            if first is None:
                continue
            assert overlooked(first) == []
            expected = check_standing(first)
            seen.update(finding.code for _, finding in expected.findings)
            for _ in range(3):
                other = context(other_batch(one, chance))
                assert other is not None
                assert check_standing(other) == expected
    assert len(seen) > 5, seen


def test_a_rule_says_that_it_reads_the_batch(root: Path) -> None:
    """Its module names a key of the batch as an attribute where the rule is marked, and nowhere else.

    What it waits for reads the batch only then, too.
    """
    for gated in ASKED:
        module = root / "memcheck/rules" / f"{gated.module}.py"
        code = module.read_text(encoding="utf-8").partition("from __future__")[2]
        assert bool(READS.search(code)) == gated.batch, gated.code
        assert gated.batch or not READS.search(inspect.getsource(gated.when)), gated.code


def test_what_stands_is_not_asked_again() -> None:
    """With the findings of the others known, those of the batch are added in the order of the rules."""
    plan = build_plan(draw(77, 3))
    assert plan.training is not None
    bad = plan._replace(
        parallelism=plan.parallelism._replace(tensor=7),
        training=plan.training._replace(sequence_length=10**7, freeze=("layers:8-4",)),
    )
    found = context(bad)
    assert found is not None
    whole, possible = check_layout(found)
    codes = [finding.code for finding in whole]
    assert codes == sorted(codes)
    assert {"MEM401", "MEM410"} <= set(codes)
    assert (whole, possible) == check_layout(found, standing=check_standing(found))
    only_batch = check_layout(found, standing=Standing())[0]
    assert {finding.code for finding in only_batch} < set(codes)
