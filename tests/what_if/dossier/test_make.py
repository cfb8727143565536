"""What a dossier adds, made by the engine that judged the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.accounts.estimate import PARTS
from memcheck.judge import Gate, check_file
from memcheck.rules.result import PlanResult
from memcheck.what_if import make_dossier, with_remedies
from memcheck.what_if.compare import DATA_CENTRE

NAMES = ("deepseek-v3-1024xh100", "llama-3.1-8b-tp4-a100-40gb", "llama-3.3-70b-inference-4xh100", "gpt2-xl-2048")


def results(root: Path, name: str, *, dossier: bool = True) -> list[PlanResult]:
    """The plans of an example."""
    path = root / "examples" / f"{name}.yaml"
    plans, traces = check_file(
        str(path), path.read_bytes(), Gate(dossier=make_dossier if dossier else None, remedies=with_remedies)
    )
    assert not traces
    return plans


@pytest.mark.parametrize("name", NAMES)
def test_ranks_hold_what_the_estimate_says(root: Path, name: str) -> None:
    """Every pipeline rank is there; the worst one has the estimate's own components, and no other needs more."""
    for plan in results(root, name):
        estimate, dossier = plan.estimate, plan.dossier
        assert estimate is not None
        assert dossier is not None
        assert [rank.pipeline_rank for rank in dossier.ranks] == [rank.pipeline_rank for rank in estimate.ranks]
        worst = next(rank for rank in dossier.ranks if rank.pipeline_rank == estimate.pipeline_rank)
        assert worst.components_bytes == estimate.parts_bytes
        assert worst.needed_bytes == estimate.needed_bytes == max(rank.needed_bytes for rank in dossier.ranks)
        assert all(set(rank.components_bytes) <= set(PARTS) for rank in dossier.ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_dossier_changes_no_verdict(root: Path, name: str) -> None:
    """Status, findings and figures are those of a run without it."""
    for told, plain in zip(results(root, name), results(root, name, dossier=False), strict=True):
        assert plain.dossier is None
        assert (told.status, told.findings) == (plain.status, plain.findings)
        assert told.estimate is not None
        assert plain.estimate is not None
        assert told.estimate.components_bytes == plain.estimate.components_bytes
        assert told.estimate.interval_bytes == plain.estimate.interval_bytes


def test_gpus_are_those_of_compare(root: Path) -> None:
    """The plan's own comes first and is the reference of speeds; a GPU that cannot run the plan says which rule."""
    (plan,) = results(root, "deepseek-v3-1024xh100")
    assert plan.dossier is not None
    assert plan.estimate is not None
    own, *others = plan.dossier.gpus
    assert (own.gpu, own.needed_bytes, own.relative_speed) == ("h100-80gb", plan.estimate.needed_bytes, 1.0)
    assert [there.gpu for there in others] == [name for name in DATA_CENTRE if name != "h100-80gb"]
    refused = {there.gpu: there.refused for there in others if there.refused}
    assert set(refused) == {"a100-40gb", "a100-80gb"}
    assert all(reason.startswith("MEM302: ") for reason in refused.values())
    assert all(
        there.needed_bytes and there.needed_high_bytes >= there.needed_bytes for there in others if not there.refused
    )


def test_what_is_wrong_everywhere_is_no_reason(root: Path) -> None:
    """A plan with an error of its own is still priced on other GPUs."""
    (plan,) = results(root, "gpt2-xl-2048")
    assert any(finding.code == "MEM401" for finding in plan.findings)
    assert plan.dossier is not None
    assert not any(there.refused for there in plan.dossier.gpus)


def test_interval_names_its_basis(root: Path) -> None:
    """The kinds of plan that its errors were taken on, and how many cases."""
    (plan,) = results(root, "llama-3.1-8b-tp4-a100-40gb")
    assert plan.dossier is not None
    assert "megatron" in plan.dossier.basis
    assert plan.dossier.cases >= 1
