"""Whole ranks against measurements that others have published."""

from __future__ import annotations

import pytest

from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.workspaces import Device
from memcheck.job.types import Layout
from tests.frameworks.megatron.models import MIB, deepseek_v2, gpt, grid, job, llama

TE_LOSS = {
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "te",
    "transformer_engine_version": "2.11",
}
EXPERTS = {
    **TE_LOSS,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_pad_expert_input_to_capacity": True,
    "moe_expert_capacity_factor": 1.0,
}
B200 = Device("sm_100", 8 * MIB + 128 * 1024)
"""torch before 2.12 gave cuBLAS 8.125 MiB on Blackwell."""
ULYSSES = {**TE_LOSS, "cp_comm_type": "a2a"}


@pytest.mark.parametrize(
    ("layout", "sequence", "options", "rank", "measured_mib"),
    [
        (grid(8, pipeline=2), 4096, TE_LOSS, 0, 68149.2),
        (grid(8, pipeline=2), 4096, TE_LOSS, 1, 64479.5),
        (grid(8, tensor=2, sequence=True), 4096, TE_LOSS, 0, 62136.3),
        (grid(8, tensor=4, sequence=True), 4096, TE_LOSS, 0, 40009.8),
        (grid(8, tensor=8, sequence=True), 4096, TE_LOSS, 0, 28965.4),
        (grid(8, tensor=2, sequence=True, context=4), 32768, ULYSSES, 0, 70070.5),
        (grid(8, context=8), 32768, ULYSSES, 0, 107014.2),
    ],
)
def test_llama_70b_on_b200(
    layout: Layout, sequence: int, options: dict[str, object], rank: int, measured_mib: float
) -> None:
    """Llama-3-70B cut to 12 layers, max_memory_allocated within 0.1 %.

    MooreThreads/SimuMax docs/b200/b200_release_v1.2_summary.json (4dcaae5): Megatron-LM 23e00ed, TE 2.11.
    """
    found = megatron_ranks(job(llama(12), layout, sequence_length=sequence, options=options), llama(12), B200)
    assert found[rank].peak.allocated_bytes / MIB == pytest.approx(measured_mib, rel=0.001)


@pytest.mark.parametrize(
    ("layout", "rank", "measured_mib"),
    [
        (grid(8, expert=8), 0, 46726.2),
        (grid(8, pipeline=2, expert=4), 0, 32343.4),
        (grid(8, pipeline=2, expert=4), 1, 45775.8),
    ],
)
def test_deepseek_v2_on_b200(layout: Layout, rank: int, measured_mib: float) -> None:
    """DeepSeek-V2 cut to four layers, max_memory_allocated within 0.3 % (source as above)."""
    found = megatron_ranks(job(deepseek_v2(), layout, options=EXPERTS), deepseek_v2(), B200)
    assert found[rank].peak.allocated_bytes / MIB == pytest.approx(measured_mib, rel=0.003)


CI = {"gradient_accumulation_fusion": False, "create_attention_mask_in_dataloader": True}
"""Megatron-LM's functional tests run deterministically."""
WORKSPACE = 32 * MIB
"""Their CUBLAS_WORKSPACE_CONFIG is :4096:8."""


@pytest.mark.parametrize(
    ("arch", "backend", "measured_bytes"), [("sm_80", "flash", 55492.5 * MIB), ("sm_90", "fused", 57143791616)]
)
def test_gpt_7b_of_megatrons_own_tests(arch: str, backend: str, measured_bytes: float) -> None:
    """gpt3_7b_tp4_pp1_memory_speed on A100 and H100: last rank's peak within 0.1 %.

    NVIDIA/Megatron-LM tests/functional_tests/test_cases/gpt, golden_values_dev_dgx_{a100,h100}.json.
    """
    model = gpt(32, hidden=4096, heads=32, groups=8, vocab=131073, positions=8192, tied=False)
    layout = Layout(gpus_per_node=8, tensor=4, data=2, zero_stage=1, shard_group=2)
    case = job(
        model,
        layout,
        micro_batch_size=2,
        sequence_length=8192,
        gradient_accumulation_steps=2,
        options={**CI, "attention_backend": backend},
    )
    found = megatron_ranks(case, model, Device(arch, WORKSPACE))[-1]
    assert found.peak.allocated_bytes == pytest.approx(measured_bytes, rel=0.001)


@pytest.mark.parametrize(
    ("arch", "backend", "resting_mib", "peak_mib"),
    [("sm_80", "flash", 526.6, 2586.1), ("sm_90", "fused", 554.6, 2567.1)],
)
def test_small_gpt_of_megatrons_own_tests(arch: str, backend: str, resting_mib: float, peak_mib: float) -> None:
    """gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer: bytes at rest and at the peak within 0.1 %."""
    layout = Layout(gpus_per_node=8, data=8, zero_stage=1, shard_group=8)
    case = job(
        gpt(),
        layout,
        micro_batch_size=4,
        sequence_length=1024,
        gradient_accumulation_steps=1,
        options={**CI, "attention_backend": backend},
    )
    found = megatron_ranks(case, gpt(), Device(arch, WORKSPACE))[-1]
    at_rest = next(i for i in found.instants if i.name == "init")
    assert at_rest.allocated_bytes / MIB == pytest.approx(resting_mib, rel=0.001)
    assert found.peak.allocated_bytes / MIB == pytest.approx(peak_mib, rel=0.001)


@pytest.mark.parametrize(
    ("arch", "peak_bytes"), [("sm_80", 2814534144), ("sm_90", 2709.6 * MIB), ("sm_100", 2842349056)]
)
def test_interleaved_pipeline_of_megatrons_own_tests(arch: str, peak_bytes: float) -> None:
    """gpt3_mcore_te_tp1_pp4_vp2_account_for_embedding_loss_in_pipeline_split: last rank's peak within 0.35 %."""
    layout = Layout(gpus_per_node=8, pipeline=4, pipeline_schedule="interleaved-1f1b", virtual_stages=2, data=2)
    model = gpt(6, tied=False)
    case = job(
        model,
        layout,
        micro_batch_size=4,
        sequence_length=1024,
        gradient_accumulation_steps=4,
        options={
            **CI,
            "attention_backend": "unfused",
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
    )
    found = megatron_ranks(case, model, Device(arch, WORKSPACE))[-1]
    assert found.peak.allocated_bytes == pytest.approx(peak_bytes, rel=0.0035)
