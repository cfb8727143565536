"""Resident bytes: contiguous buffers, distributed and precision-aware optimizers, Megatron-FSDP, workspaces."""

from __future__ import annotations

import pytest

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron import buffers, fsdp
from memcheck.frameworks.megatron.buffers import counted
from memcheck.frameworks.megatron.head import MegatronHead, megatron_head_curve
from memcheck.frameworks.megatron.profile import FRAMEWORK as MEGATRON
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.setting import attention_backend, megatron_setting
from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, head_tensors, padded_vocabulary
from memcheck.frameworks.megatron.workspaces import MIB, TE_WORKSPACE, ChunkContents, Device, workspaces
from tests.frameworks.megatron.models import deepseek_v2, gpt, grid, job, llama_8b, setting

MATRIX = (LocalTensor("linear.weight", (4096, 4096), trained=True, matrix=True),)
N = 4096 * 4096


def bytes_per_parameter(**changes: object) -> float:
    """All states of one large matrix, per parameter."""
    layout = changes.pop("layout", grid(1, zero_stage=0))
    case = job(llama_8b(), layout, **changes)  # type: ignore[arg-type]
    found = buffers.state_bytes(case, counted([MATRIX]))
    return (found.parameters + found.gradients + found.master_weights + found.optimizer_states) / N


def test_plain_data_parallelism_takes_18_bytes() -> None:
    """2 of bf16, 4 of main gradient, 4 of master weight, 8 of moments."""
    assert bytes_per_parameter() == 18


@pytest.mark.parametrize("ways", [2, 8, 64])
def test_the_distributed_optimizer_takes_6_and_12_over_d(ways: int) -> None:
    """Master weights and moments are divided over data times context ranks."""
    assert bytes_per_parameter(layout=grid(ways)) == 6 + 12 / ways
    assert bytes_per_parameter(layout=grid(ways, context=2)) == 6 + 12 / ways


def test_the_precision_aware_optimizer_takes_what_it_is_told() -> None:
    """bf16 main gradients and moments, and only the remainders of the fp32 weights: 2 + 2 + (2 + 2 + 2) / d."""
    options = {
        "use_precision_aware_optimizer": True,
        "main_grads_dtype": "bf16",
        "exp_avg_dtype": "bf16",
        "exp_avg_sq_dtype": "bf16",
    }
    assert bytes_per_parameter(layout=grid(4), options=options) == 4 + 6 / 4
    options["store_param_remainders"] = False
    assert bytes_per_parameter(layout=grid(4), options=options) == 4 + 8 / 4


def test_instances_of_the_distributed_optimizer_divide_less() -> None:
    """num_distributed_optimizer_instances keeps that many copies of the divided states."""
    assert bytes_per_parameter(layout=grid(8), options={"num_distributed_optimizer_instances": 2}) == 6 + 12 / 4


def test_offloaded_states_leave_the_gpu() -> None:
    """optimizer_cpu_offload takes its fraction of master weights and moments away."""
    options = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}
    assert bytes_per_parameter(layout=grid(4), options=options) == 6 + 0.5 * 12 / 4


def test_half_precision_main_gradients_are_copied_for_the_optimizer() -> None:
    """bf16 main gradients become fp32 during the step, unless the optimizer is precision-aware."""
    case = job(llama_8b(), grid(4), options={"grad_reduce_in_bf16": True})
    assert buffers.step_temporaries(case, counted([MATRIX])) == N
    assert buffers.step_temporaries(job(llama_8b(), grid(4)), counted([MATRIX])) == 0


def test_states_of_fewer_bits_are_copied_to_fp32_for_the_step() -> None:
    """TE's FusedAdam: an fp32 copy of each state that is not, of this rank's shard, but of remainders; and a cast back."""
    aware = {"use_precision_aware_optimizer": True}
    half = {**aware, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    assert buffers.step_temporaries(job(llama_8b(), grid(4), options=aware), counted([MATRIX])) == 0
    assert buffers.step_temporaries(job(llama_8b(), grid(4), options=half), counted([MATRIX])) == (2 * 4 + 2) * N / 4
    master = {**aware, "main_params_dtype": "fp16"}
    assert buffers.step_temporaries(job(llama_8b(), grid(4), options=master), counted([MATRIX])) == 4 * N / 4
    away = {**half, "optimizer_cpu_offload": True}
    assert buffers.step_temporaries(job(llama_8b(), grid(4), options=away), counted([MATRIX])) == 0


def test_optimizers_step_one_after_the_other() -> None:
    """Dense and expert parameters: the copies of the larger part count, not of both."""
    half = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "fp32"}
    case = job(deepseek_v2(), grid(8, expert=8), options=half)
    experts = (LocalTensor("expert.weight", (4096, 4096), trained=True, expert=True, matrix=True),)
    assert buffers.step_temporaries(case, counted([experts])) == (4 + 2) * N
    assert buffers.step_temporaries(case, counted([(*MATRIX, *experts)])) == (4 + 2) * N


def test_buffers_are_aligned() -> None:
    """Parameters start at multiples of 64 elements, buffers end at multiples of 128 and of the ranks."""
    tensors = (LocalTensor("a", (100,), trained=True), LocalTensor("b", (65,), trained=True))
    assert buffers.padded_elements(counted([tensors]), 1) == 256
    assert buffers.padded_elements(counted([tensors]), 3) == 384
    assert buffers.padded_elements(counted([tensors]), 1, high_bandwidth=True) == 2**16


def test_frozen_parameters_have_no_states() -> None:
    """A frozen tensor rests in its own dtype and nothing else."""
    frozen = tuple(t._replace(trained=False) for t in MATRIX)
    found = buffers.state_bytes(job(llama_8b(), grid(4)), counted([frozen]))
    assert (found.parameters, found.gradients, found.master_weights, found.optimizer_states) == (2 * N, 0, 0, 0)


def test_experts_are_divided_over_their_own_ranks() -> None:
    """With 8 experts' ranks and data parallelism of 8, expert states have one copy each."""
    case = job(deepseek_v2(), grid(8, expert=8))
    assert buffers.optimizer_ranks(case, expert=False) == 8
    assert buffers.optimizer_ranks(case, expert=True) == 1


def test_fsdp_divides_everything() -> None:
    """zero_stage 3 is Megatron-FSDP's optim_grads_params: 18 bytes over the ranks."""
    case = job(llama_8b(), grid(8, zero_stage=3))
    found = fsdp.state_bytes(case, counted([MATRIX]))
    assert fsdp.is_sharded(case)
    assert (found.parameters + found.gradients + found.master_weights + found.optimizer_states) / N == 18 / 8
    half = fsdp.state_bytes(job(llama_8b(), grid(8, zero_stage=2)), counted([MATRIX]))
    assert half.parameters == 2 * N


def test_double_buffers_hold_two_units_of_parameters_and_gradients() -> None:
    """fsdp_double_buffer: two layers' parameters and gradients stay, also while the loss is computed."""
    model, layer = llama_8b(), 218_112_000
    half = {"megatron_fsdp_grad_comm_dtype": "bf16"}
    plain, pooled = (
        megatron_ranks(job(model, grid(8, zero_stage=3), options=options), model)[0]
        for options in (half, {**half, "fsdp_double_buffer": True})
    )
    held = [
        next(i for i in r.instants if i.name == "loss").components_bytes["communication_buffers"]
        for r in (plain, pooled)
    ]
    assert held[1] - held[0] == 2 * layer * (2 + 2)
    wide = megatron_ranks(job(model, grid(8, zero_stage=3)), model)[0]
    assert wide.peak.allocated_bytes > pooled.peak.allocated_bytes


def test_fsdp_keeps_main_weights_beside_fp32_parameters() -> None:
    """The buffer of main weights is there whatever the parameters' dtype; ``auto`` leaves it out."""
    case = job(llama_8b(), grid(8, zero_stage=3), recipe=MEGATRON.precisions.recipes["fp32"])
    assert fsdp.state_bytes(case, counted([MATRIX])).master_weights == 4 * N / 8
    auto = case._replace(options=(("megatron_fsdp_main_params_dtype", "auto"),))
    assert fsdp.state_bytes(auto, counted([MATRIX])).master_weights == 0


def test_fsdp_sums_gradients_in_the_dtype_of_the_release() -> None:
    """``auto``, which newer releases have, is that of the parameters; without a word it may be an older one's fp32."""
    case = job(llama_8b(), grid(8, zero_stage=3))
    auto = case._replace(options=(("megatron_fsdp_main_grads_dtype", "auto"),))
    assert fsdp.state_bytes(case, counted([MATRIX])).gradients == 4 * N / 8
    assert fsdp.state_bytes(auto, counted([MATRIX])).gradients == 2 * N / 8


def test_fsdp_gathers_fp8_weights_as_such() -> None:
    """fp8_param_gather: one byte per element of TE's linear layers, two under MXFP8, the others as they are."""
    linear = LocalTensor("mlp.linear_fc1.weight", (1024, 512), trained=True, matrix=True)
    other = LocalTensor("output_layer.weight", (1024, 512), trained=True, matrix=True)
    options = {"fp8_format": "hybrid", "fp8_param_gather": True, "fp8_recipe": "tensorwise"}
    case = job(llama_8b(), grid(8, zero_stage=3), options=options)
    assert fsdp.parameter_bytes(case, counted([(linear, other)])) == (1 + 2) * 1024 * 512
    wide = job(llama_8b(), grid(8, zero_stage=3), options={**options, "fp8_recipe": "mxfp8"})
    assert fsdp.parameter_bytes(wide, counted([(linear, other)])) == (2 + 2) * 1024 * 512


def test_the_heads_gradient_buffer_comes_with_its_product() -> None:
    """Megatron-FSDP: while the logits' gradient is made there is no buffer for the weight's gradient yet."""
    vocabulary, hidden, tokens = 131072, 1024, 4096
    case = setting(hidden, sequence=tokens, options={"gradient_accumulation_fusion": False})
    plain = megatron_head_curve(MegatronHead(vocabulary, None, tied=False), case)
    made = megatron_head_curve(MegatronHead(vocabulary, None, tied=False, main_gradient_dtype="fp32"), case)
    assert plain.backward_peak.label == made.backward_peak.label == "gradient of logits"
    assert made.backward_peak.bytes == plain.backward_peak.bytes
    short = case._replace(sequence=64)
    apart, with_buffer = (
        megatron_head_curve(
            MegatronHead(vocabulary, None, tied=False, main_gradient_dtype=d), short
        ).backward_peak.bytes
        for d in (None, "fp32")
    )
    assert with_buffer - apart > 3 * vocabulary * hidden


def test_the_vocabulary_is_padded_to_128_per_tensor_rank() -> None:
    """50,257 tokens become 50,304 alone and 50,688 over eight tensor ranks; a plan may ask for another multiple."""
    assert padded_vocabulary(50257, job(gpt(), grid(1))) == 50304
    assert padded_vocabulary(50257, job(gpt(), grid(8, tensor=8))) == 51200
    assert padded_vocabulary(50257, job(gpt(), grid(1), options={"make_vocab_size_divisible_by": 64})) == 50304


def test_parameters_of_llama_8b_add_up() -> None:
    """Fused matrices hold what transformers' separate ones do; the vocabulary needs no padding."""
    model, case = llama_8b(), job(llama_8b(), grid(1))
    tensors = [t for b in model.layers() for t in block_tensors(b, case, 4096)]
    tensors += [*embedding_tensors(model, case), *head_tensors(model, case, shares=False)]
    assert sum(t.numel for t in tensors) == 8_030_261_248


def test_tensor_ranks_share_the_matrices() -> None:
    """Eight ranks hold an eighth of every matrix and the whole of every norm."""
    model = llama_8b()
    whole = block_tensors(model.layers()[0], job(model, grid(1)), 4096)
    part = block_tensors(model.layers()[0], job(model, grid(8, tensor=8)), 4096)
    assert [t.numel / p.numel for t, p in zip(whole, part, strict=True)] == [8 if t.matrix else 1 for t in whole]


def test_dummy_gradients_are_one_per_shape() -> None:
    """With fused accumulation autograd is handed one cached dummy per weight shape; without it there is none."""
    model, case = llama_8b(), job(llama_8b(), grid(1))
    setting = megatron_setting(case, model)
    tensors = [t for b in model.layers() for t in block_tensors(b, case, 4096)]
    side = workspaces(
        case,
        model,
        setting,
        ChunkContents(list(model.layers()), [(t, 1) for t in tensors], has_embedding=False, has_head=False),
    )
    shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    assert side.dummy_gradients == sum(2 * a * b for a, b in shapes)
    plain = job(model, grid(1), options={"gradient_accumulation_fusion": False})
    held = ChunkContents(list(model.layers()), [(t, 1) for t in tensors], has_embedding=False, has_head=False)
    assert workspaces(plain, model, megatron_setting(plain, model), held).dummy_gradients == 0


@pytest.mark.parametrize(
    ("arch", "te", "cublas"),
    [("sm_80", 4 * MIB, 8.125 * MIB), ("sm_90", TE_WORKSPACE, 32 * MIB), (None, TE_WORKSPACE, 32 * MIB)],
)
def test_workspaces_follow_the_gpu(arch: str | None, te: int, cublas: float) -> None:
    """TE's workspace, and torch's for the output layer in the forward and in the autograd thread."""
    model, case = llama_8b(), job(llama_8b(), grid(1))
    held = ChunkContents([], [], has_embedding=True, has_head=True)
    side = workspaces(case, model, megatron_setting(case, model), held, Device(arch))
    assert side.cublas == rounded(te) + 2 * cublas
    overlap = job(llama_8b(), grid(2, tensor=2, sequence=True), options={"tp_comm_overlap": True})
    more = workspaces(overlap, model, megatron_setting(overlap, model), held, Device(arch))
    assert more.cublas == side.cublas + rounded(3 * te)


def test_the_attention_backend_follows_the_gpu() -> None:
    """TransformerEngine prefers cuDNN from Hopper on and FlashAttention before; a plan may choose."""
    case = job(llama_8b(), grid(1))
    assert [attention_backend(case, a) for a in ("sm_80", "sm_90", None)] == ["flash", "fused", "fused"]
    assert attention_backend(case._replace(attention="eager"), "sm_90") == "unfused"
    assert attention_backend(case._replace(options=(("attention_backend", "flash"),)), "sm_90") == "flash"
    assert attention_backend(case._replace(options=(("transformer_impl", "local"),)), "sm_90") == "local"


def test_the_global_buffer_is_as_large_as_its_largest_use() -> None:
    """Gathered inputs of the output layer under sequence parallelism, scores of local attention."""
    model = llama_8b()
    case = job(model, grid(4, tensor=4, sequence=True))
    held = ChunkContents(list(model.layers()), [], has_embedding=False, has_head=True)
    assert workspaces(case, model, megatron_setting(case, model), held).global_buffer == 2 * 4096 * 4096
    local = job(model, grid(4, tensor=4, sequence=True), options={"transformer_impl": "local"})
    assert workspaces(local, model, megatron_setting(local, model), held).global_buffer == 2 * 8 * 4096 * 4096
