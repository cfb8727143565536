"""A search from an unsharded plan tries what a sharded plan offers: how it is loaded, and what it keeps on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.judge import Gate, check_document
from memcheck.plan.read import load_documents
from memcheck.what_if import with_remedies
from memcheck.what_if.remedies.candidates import STAGE
from memcheck.what_if.search.space import singles, space_of
from tests.what_if.search.contexts import context_of

PLACE = "training.initialization.place"
ON_OTHERS = ("hardware", "parallelism")
FOUR_BITS = """\
memcheck: 1
model: llama-3.1-70b
hardware: {{gpu: rtx-4090, gpus_per_node: 2}}
parallelism: {{zero_stage: {stage}}}
training:
  framework: huggingface
  method: qlora
  lora: {{rank: 16, target_modules: all-linear}}
  micro_batch_size: 1
  sequence_length: 2048
  precision: bf16-mixed
  activation_checkpointing: full
"""
WHOLE = """\
memcheck: 1
model: llama-3.1-70b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism: {{zero_stage: {stage}}}
training: {{framework: {framework}, micro_batch_size: 1, sequence_length: 2048}}
"""
PLANS = [FOUR_BITS, *(WHOLE.replace("{framework}", name) for name in ("pytorch", "deepspeed", "huggingface"))]


def offered(changes: object) -> set[tuple[str, str]]:
    """Every key with every value."""
    every = [item for each in changes for item in each.set.items()]  # type: ignore[attr-defined]
    return {(key, str(value)) for key, value in every if key.partition(".")[0] not in ON_OTHERS}


@pytest.mark.parametrize("plan", PLANS)
def test_what_a_sharded_plan_offers_is_offered_to_an_unsharded_one(plan: str) -> None:
    """Every key and value, alone and in the space of a search; keys of the step are not lost by sharding."""
    plain, sharded = (context_of(plan.format(stage=stage)) for stage in (0, 3))
    assert offered(singles(sharded)) - offered(singles(plain)) == set()
    for part in ("states", "steps"):
        there, here = (getattr(space_of(context), part) for context in (sharded, plain))
        assert offered(there) <= offered(here)


def test_each_is_offered_with_the_stage_that_it_needs() -> None:
    """In one step of a search, as the plan would not change otherwise."""
    found = [each for each in singles(context_of(FOUR_BITS.format(stage=0))) if PLACE in each.set]
    assert {each.set[PLACE] for each in found} == {"rank0", "host"}
    assert {each.set[STAGE] for each in found} == {3}


def test_a_plan_that_fits_sharded_gets_that_as_its_remedy() -> None:
    """From stage 0 the same remedy as from stage 3, but for the stage."""
    for stage in (0, 3):
        (document,) = load_documents("plan.yaml", FOUR_BITS.format(stage=stage).encode())
        found = next(f for f in check_document(document, Gate(remedies=with_remedies)).findings if f.code == "MEM101")
        same = [remedy for remedy in found.remedies if remedy.safe]
        assert [remedy.set.get("training.initialization") for remedy in same] == ["rank0"]
        assert same[0].utilization == pytest.approx(0.552, abs=0.001)


def test_a_loss_is_offered_from_the_release_that_has_it() -> None:
    """TRL computes head and loss in chunks since 1.4; an older one has Liger's kernel."""
    for release, kind in ("0.24", "fused-linear"), ("1.4", "chunked"):
        plan = FOUR_BITS.format(stage=0) + f"  trainer: {{name: trl, version: '{release}'}}\n"
        assert ("training.loss.kind", kind) in offered(singles(context_of(plan)))


@pytest.mark.slow
def test_what_no_plan_of_the_space_does_is_said_of_the_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the layout kept the space is smaller, and the sentence claims no more than that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("plan.yaml").write_text(FOUR_BITS.format(stage=0))
    assert main(["suggest", "plan.yaml", "--keep", "parallelism", "--keep", "hardware"]) == 1
    out = capsys.readouterr().out
    assert "no plan of the space below fits on 2 x rtx-4090" in out
    assert "nothing fits" not in out
    assert main(["suggest", "plan.yaml", "--keep", "hardware"]) == 0
