"""Remedies are re-computed, legal, ranked, and do what they say."""

from __future__ import annotations

import pytest

from memcheck.config.find import DEFAULT_FAIL_ABOVE
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.judge import Gate, check_document
from memcheck.plan.read import load_documents, read_plan, with_changes
from memcheck.plan.value_edits import apply_edits
from memcheck.what_if import with_remedies
from tests.what_if.remedies.plans import BASE, LARGE_BATCH, REPLICATED, SINGLE, over_budget, read

EACH = pytest.mark.parametrize("text", BASE.values(), ids=list(BASE))


@EACH
def test_every_remedy_makes_the_plan_pass(text: str) -> None:
    """A plan changed as a remedy says has no error left, and needs exactly the bytes that the remedy states."""
    finding = over_budget(text)
    assert finding.remedies
    for remedy in finding.remedies:
        result = check_document(read(text), Gate(changes=remedy.set))
        assert [f.message for f in result.findings if f.severity == "error"] == []
        assert result.estimate is not None
        assert result.estimate.device_bytes == remedy.device_bytes
        assert remedy.utilization <= DEFAULT_FAIL_ABOVE


@EACH
def test_remedies_are_ranked_by_what_they_ask_for(text: str) -> None:
    """Safe changes come before others, and among the safe ones the least slow first."""
    remedies = over_budget(text).remedies
    assert [r.safe for r in remedies] == sorted((r.safe for r in remedies), reverse=True)
    slow = [max(0.0, r.slowdown) for r in remedies if r.safe]
    assert slow == sorted(slow)
    assert len(remedies) <= 5


@EACH
def test_the_help_names_the_first_remedy(text: str) -> None:
    """The one line that everybody reads names the cheapest change and what it brings."""
    finding = over_budget(text)
    assert finding.help.startswith(finding.remedies[0].title)
    assert f"{finding.remedies[0].utilization:.1%}" in finding.help


@EACH
def test_safe_remedies_keep_the_training(text: str) -> None:
    """A safe change keeps the number of GPUs, the global batch, the optimizer and the method."""

    def kept(changes: dict[str, object]) -> tuple[object, ...]:
        plan, _ = read_plan(with_changes(read(text), changes))
        assert plan is not None
        resolved = resolve(plan, FRAMEWORKS, base_dir=".")
        job = resolved.job
        if not isinstance(job, TrainingJob):
            served = (job.batch_size, job.context_length, job.weights, job.kv_cache)
            return (resolved.gpu.name, job.layout.world_size, *served)
        batch = job.micro_batch_size * job.layout.data * job.gradient_accumulation_steps
        return (resolved.gpu.name, job.layout.world_size, batch, job.sequence_length, job.optimizer.name, job.method)

    before = kept({})
    for remedy in over_budget(text).remedies:
        if remedy.safe:
            assert kept(remedy.set) == before


@EACH
def test_edits_write_what_the_remedy_says(text: str) -> None:
    """Where a remedy has text edits, the edited file reads as the plan with the values set."""
    document = read(text)
    for remedy in over_budget(text).remedies:
        if remedy.edits:
            edited = apply_edits(document.sources["plan.yaml"], remedy.edits)
            (again,) = load_documents("plan.yaml", edited.encode())
            assert again.values == with_changes(document, remedy.set).values


def test_sharding_is_found_for_replicated_states() -> None:
    """Eight replicas of 16 bytes a parameter are mended by sharding them, with an edit that adds the section."""
    first = over_budget(REPLICATED).remedies[0]
    assert first.set == {"parallelism.zero_stage": 3}
    assert first.safe
    edited = apply_edits(read(REPLICATED).sources["plan.yaml"], first.edits)
    assert "parallelism:\n  zero_stage: 3\n\ntraining:\n" in edited


def test_a_fused_loss_or_a_smaller_micro_batch_is_found_for_large_batches() -> None:
    """Four long sequences of logits are mended without touching the optimizer."""
    sets = [r.set for r in over_budget(LARGE_BATCH).remedies]
    assert any("training.loss" in s for s in sets)
    micro = [s for s in sets if "training.micro_batch_size" in s]
    assert micro
    assert all("training.gradient_accumulation_steps" not in s for s in micro)


def test_nothing_safe_is_promised_where_nothing_helps() -> None:
    """8 billion parameters on one small GPU: only another method or another GPU is offered."""
    remedies = over_budget(SINGLE).remedies
    assert remedies
    assert not any(r.safe for r in remedies)


def test_a_plan_that_fits_has_no_remedies() -> None:
    """Remedies are searched only for plans that need too much."""
    fits = REPLICATED.replace("training:\n", "parallelism: {zero_stage: 3}\ntraining:\n")
    result = check_document(read(fits), Gate(remedies=with_remedies))
    assert not any(f.remedies for f in result.findings)


def test_policy_of_the_plan_is_the_target() -> None:
    """A plan with a stricter limit gets remedies that meet that limit."""
    strict = REPLICATED + "policy: {fail_above: 40%}\n"
    remedies = over_budget(strict).remedies
    assert remedies
    assert all(r.utilization <= 0.4 for r in remedies)
