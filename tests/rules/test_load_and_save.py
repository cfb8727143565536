"""What the rules say of loading and saving, and the remedies for them."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_document
from memcheck.plan.finding import Finding
from memcheck.plan.read import load_documents
from memcheck.rules.result import PlanResult
from memcheck.what_if import with_remedies

FSDP = """\
memcheck: 1
model: llama-3.3-70b
hardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: 4, host_memory_gib: {host}}}
parallelism: {{zero_stage: 3}}
training:
  framework: {framework}
  micro_batch_size: 1
  sequence_length: 2048
  precision: bf16-mixed
  activation_checkpointing: full
"""


def judged(text: str, *, remedies: bool = True) -> PlanResult:
    """A plan's verdict."""
    (document,) = load_documents("plan.yaml", text.encode())
    return check_document(document, Gate(remedies=with_remedies if remedies else None))


def fsdp(extra: str = "", host: int = 1024, framework: str = "huggingface") -> str:
    """70B over four nodes."""
    return FSDP.format(host=host, framework=framework) + extra


def only(result: PlanResult, code: str) -> Finding:
    """The one finding of a rule."""
    (finding,) = [f for f in result.findings if f.code == code]
    return finding


def test_eight_processes_that_load_exceed_a_node() -> None:
    """The instant is named, the precision that makes copies is pointed at, and loading once is the first remedy."""
    finding = only(judged(fsdp()), "MEM106")
    assert finding.message == (
        "a node needs 2,102.66 GiB of host memory in load (8 processes making the model), and has 1,024.00 GiB, "
        "1,078.66 GiB too little; parameters 2,102.66 GiB"
    )
    assert finding.pointer == "/training/precision"
    assert finding.remedies[0].set == {"training.initialization": "rank0"}


def test_the_key_that_says_how_to_load_is_pointed_at() -> None:
    """A plan that states the place has it underlined."""
    finding = only(judged(fsdp("  initialization: host\n"), remedies=False), "MEM106")
    assert finding.pointer == "/training/initialization"


def test_loading_once_passes() -> None:
    """One fp32 copy of 70B is 263 GiB, and the gathered optimizer states 526 GiB."""
    assert [f for f in judged(fsdp("  initialization: rank0\n")).findings if f.code == "MEM106"] == []


def test_a_full_state_dict_exceeds_rank_0s_node() -> None:
    """What rank 0 gathers does not shrink with more nodes; its part does."""
    finding = only(judged(fsdp("  initialization: rank0\n  checkpoint: full\n", host=500)), "MEM106")
    assert "525.67 GiB of host memory in save (rank 0 gathering the optimizer states)" in finding.message
    assert finding.pointer == "/training/checkpoint"
    assert finding.remedies[0].set == {"training.checkpoint": "sharded"}


def test_both_are_said_and_mended_together() -> None:
    """Two moments above the limit stand in one finding, and the first remedy changes both."""
    finding = only(judged(fsdp(host=500)), "MEM106")
    assert "; 525.67 GiB in save (rank 0 gathering the optimizer states)" in finding.message
    assert finding.remedies[0].set == {"training.initialization": "rank0", "training.checkpoint": "sharded"}


def test_a_gather_on_the_gpus_is_judged_there() -> None:
    """The peak of a rank is in save, the offload of the gather is pointed at and is among the remedies."""
    text = fsdp("  checkpoint: {state_dict: full, offload: none}\n", framework="pytorch")
    finding = only(judged(text, remedies=False), "MEM101")
    assert "the peak is in save (gathering the full state dict on every GPU)" in finding.message
    assert finding.pointer == "/training/checkpoint/offload"
    sets = [remedy.set for remedy in only(judged(text), "MEM101").remedies]
    assert {"training.checkpoint.offload": "cpu"} in sets
    assert {"training.checkpoint.state_dict": "sharded"} in sets


QLORA = """\
memcheck: 1
model: llama-3.3-70b
hardware: {gpu: a10g, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training:
  framework: huggingface
  method: qlora
  micro_batch_size: 1
  sequence_length: 1024
  activation_checkpointing: full
"""


def test_a_quantised_model_that_loads_whole_is_found() -> None:
    """Every step would fit into 22 GiB; loading does not, and the method is why."""
    finding = only(judged(QLORA, remedies=False), "MEM101")
    assert "the peak is in load (building the whole model on every GPU, " in finding.message
    assert finding.pointer == "/training/method"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QLORA + "  initialization: meta\n", "quantizes each tensor on the GPU of its process, not `meta`"),
        (fsdp("  checkpoint: {state_dict: full, offload: none}\n"), "gathers a full state dict to host memory"),
        (fsdp("  checkpoint: {state_dict: sharded, asynchronous: true}\n"), "has no asynchronous checkpoints"),
        (
            fsdp("  checkpoint: {state_dict: full, asynchronous: true}\n", framework="pytorch"),
            "only sharded state dicts are saved asynchronously",
        ),
    ],
)
def test_what_a_stack_cannot_do_is_said(text: str, message: str) -> None:
    """A setting that the framework does not have would be estimated as something that never runs."""
    assert message in only(judged(text, remedies=False), "MEM408").message


def test_a_stated_default_changes_nothing() -> None:
    """Writing what is assumed is the same plan."""
    stated = fsdp("  initialization: {place: host, weights: bf16}\n  checkpoint: {state_dict: full, optimizer: true}\n")
    assert judged(stated, remedies=False).estimate == judged(fsdp(), remedies=False).estimate
