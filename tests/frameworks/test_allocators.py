"""The allocator's settings that a framework was measured with."""

from __future__ import annotations

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved, resolve
from memcheck.memory.allocator import allocator_group, residuals
from memcheck.plan.read import read_plan
from tests.rules.plans import document


def _resolved(framework: str, expandable: bool) -> Resolved:
    training = f"framework: {framework}, expandable_segments: {str(expandable).lower()}"
    plan, _ = read_plan(document(training=training))
    assert plan is not None
    return resolve(plan, FRAMEWORKS, base_dir=".")


def test_records_name_what_was_measured() -> None:
    """A record lists exactly the settings for which there are steps of its kind of plan."""
    for framework in FRAMEWORKS.values():
        for setting, expandable in (("default", False), ("expandable", True)):
            measured = allocator_group(_resolved(framework.name, expandable).job) in residuals().reserved
            assert (setting in framework.allocators) == measured, (framework.name, setting)


def test_a_setting_that_was_not_measured_is_an_assumption() -> None:
    """Megatron's fragmentation is the same with either setting, and the plan's assumptions say why."""
    notes = [a for a in _resolved("megatron", True).assumptions if a.key == "training.expandable_segments"]
    assert [(a.value, "no step of megatron was measured with it" in a.why) for a in notes] == [(True, True)]
    stated = _resolved("megatron", False).assumptions
    assert not [a for a in stated if a.key == "training.expandable_segments"]
