"""Seconds of a step: what they are made of, and in which direction each choice moves them."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import find_gpu
from memcheck.errors import UnsupportedError
from memcheck.families.registry import catalog_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Attention, Rough
from memcheck.timing.model import shape_of
from memcheck.timing.shape import products
from memcheck.timing.step import HOST_ADAM_PER_SECOND, TORCH_SLOWER, step_time
from memcheck.timing.types import MissingRateError, StepTime
from tests.timing.plans import job, timed

TERA = 1e12


def flops_per_token(time: StepTime) -> float:
    """Model FLOPs of one token."""
    return time.model_tflops_per_gpu * TERA / time.tokens_per_second_per_gpu


def test_the_parts_add_up() -> None:
    """The seconds of a step are the sum of arithmetic, memory, exposed communication, bubble and offload."""
    time = timed("llama-3.1-70b", 64, tensor=4, pipeline=4, zero_stage=3, gradient_accumulation_steps=8)
    parts = (
        time.compute_seconds,
        time.hbm_seconds,
        time.exposed_communication_seconds,
        time.bubble_seconds,
        time.offload_seconds,
    )
    assert time.seconds == pytest.approx(sum(parts))
    assert all(part > 0 for part in parts[:4])
    assert time.exposed_communication_seconds == pytest.approx(time.exchanges.seconds)


def test_model_flops_are_those_of_the_formula() -> None:
    """Per token: 6 per parameter of the matrices, and 6 L q S for causal attention (12 L q S without the mask)."""
    llama = catalog_architecture("llama-3.1-8b")
    norms = (2 * llama.num_layers + 1) * llama.hidden_size
    matrices = count_parameters(llama) - norms - llama.vocab_size * llama.hidden_size
    expected = 6 * matrices + 6 * llama.num_layers * llama.hidden_size * 8192
    assert flops_per_token(timed(zero_stage=3)) == pytest.approx(expected, rel=1e-6)


def test_experts_count_by_those_that_a_token_takes() -> None:
    """Mixtral's model FLOPs are those of two of its eight experts."""
    mixtral = catalog_architecture("mixtral-8x7b")
    (block, layers) = mixtral.blocks[0]
    assert isinstance(block.mixer, Attention)
    h, width = mixtral.hidden_size, block.mixer.heads * block.mixer.head_dim
    kv = block.mixer.kv_heads * block.mixer.head_dim
    layer = 2 * h * width + 2 * h * kv + 2 * 3 * h * 14336 + 8 * h
    expected = 6 * (layers * layer + mixtral.vocab_size * h) + 6 * layers * width * 8192
    assert flops_per_token(timed("mixtral-8x7b", 8, "megatron", expert=8)) == pytest.approx(expected, rel=1e-3)


def test_model_flops_do_not_depend_on_how_the_job_is_cut() -> None:
    """Tensor, context, pipeline and expert degrees change the time, not the FLOPs of a token."""
    whole = flops_per_token(timed("mixtral-8x7b", 8, "megatron"))
    for keys in ({"tensor": 4}, {"context": 2}, {"pipeline": 4}, {"expert": 4}, {"expert": 2, "expert_tensor": 2}):
        assert flops_per_token(timed("mixtral-8x7b", 8, "megatron", **keys)) == pytest.approx(whole)


def test_experts_that_are_cut_gather_what_is_routed() -> None:
    """The same FLOPs on each rank, and beside the all-to-all the tokens of both ranks that share an expert."""
    options = {"moe_token_dispatcher_type": "alltoall"}
    whole, cut = (
        timed("mixtral-8x7b", 16, "megatron", expert=8, expert_tensor=n, tensor=2, options=options) for n in (1, 2)
    )
    assert cut.compute_seconds == pytest.approx(whole.compute_seconds, rel=0.02)
    assert cut.exchanges.tensor == whole.exchanges.tensor
    assert cut.exchanges.expert > 1.2 * whole.exchanges.expert
    alone = timed("mixtral-8x7b", 16, "megatron", expert_tensor=2, tensor=2, options=options)
    assert 0 < alone.exchanges.expert < cut.exchanges.expert


def test_recompute_adds_a_forward_pass_of_the_layers() -> None:
    """Full recompute: a third more arithmetic in the layers, the same model FLOPs, a slower step."""
    none, full = (timed(zero_stage=3, activation_checkpointing=mode) for mode in ("none", "full"))
    assert flops_per_token(full) == pytest.approx(flops_per_token(none))
    assert 1.25 < full.compute_seconds / none.compute_seconds < 1.34
    assert full.hardware_tflops_per_gpu / full.model_tflops_per_gpu > 1.25
    assert full.seconds > none.seconds


def test_selective_recompute_lies_between() -> None:
    """torchtitan's per-operator mode costs less than full recompute and more than none."""
    none, selective, full = (
        timed(zero_stage=3, activation_checkpointing=mode).seconds for mode in ("none", "selective", "full")
    )
    assert none < selective < full


def test_megatron_recomputes_core_attention_alone() -> None:
    """Selective recompute under Megatron costs the attention kernel's forward pass, a few per cent."""
    none, selective = (
        timed(framework="megatron", tensor=8, activation_checkpointing=mode).seconds for mode in ("none", "selective")
    )
    assert 1.0 < selective / none < 1.1


def test_every_second_layer_costs_half_of_full_recompute() -> None:
    """``every_n_layers: 2`` recomputes half of the layers."""
    none, half, full = (
        timed(zero_stage=3, activation_checkpointing=mode).compute_seconds
        for mode in ("none", {"mode": "full", "every_n_layers": 2}, "full")
    )
    assert half - none == pytest.approx((full - none) / 2)


def test_adapters_need_no_gradients_of_the_base() -> None:
    """LoRA does two thirds of the matrix products of full training, and a little for the adapters."""
    full, lora = (timed(gpus=1, framework="huggingface", method=method) for method in ("full", "lora"))
    assert 0.66 < flops_per_token(lora) / flops_per_token(full) < 0.75
    assert lora.seconds < full.seconds


def test_layers_below_the_first_trained_one_have_no_backward() -> None:
    """Freezing embedding and lower layers saves their backward pass; freezing upper ones only their weights' part."""
    full = timed(gpus=1, framework="huggingface").compute_seconds
    lower = timed(gpus=1, framework="huggingface", freeze=["embed", "layers:0-16"]).compute_seconds
    upper = timed(gpus=1, framework="huggingface", freeze=["embed", "layers:16-32"]).compute_seconds
    assert lower < upper < full


def test_half_the_tokens_take_more_than_half_the_time() -> None:
    """Larger micro-batches are more efficient: the optimizer's step and the reduction are shared by more tokens."""
    rates = [timed(micro_batch_size=size, zero_stage=3).tokens_per_second_per_gpu for size in (1, 2, 4)]
    assert rates == sorted(rates)


def test_fp8_is_faster_and_not_twice_as_fast() -> None:
    """fp8 doubles the matrix products' rate; attention, casts and the rest stay."""
    bf16, fp8 = (
        timed(zero_stage=3, compile=True, precision=precision, micro_batch_size=2)
        for precision in ("bf16-mixed", "fp8-mixed")
    )
    assert 1.1 < bf16.seconds / fp8.seconds < 2


def test_compiling_saves_memory_traffic() -> None:
    """``compile: true`` fuses element-wise operations."""
    eager, compiled = (timed(zero_stage=3, compile=flag) for flag in (False, True))
    assert compiled.hbm_seconds < eager.hbm_seconds
    assert compiled.compute_seconds == eager.compute_seconds


def test_eager_attention_is_slower() -> None:
    """Scores that go through device memory cost more than the flash kernel, and the more the longer the sequence."""
    ratios = []
    for length in (2048, 8192):
        eager, sdpa = (
            timed(gpus=1, framework="huggingface", attention=kind, sequence_length=length).seconds
            for kind in ("eager", "sdpa")
        )
        ratios.append(eager / sdpa)
    assert 1 < ratios[0] < ratios[1]


def test_tensor_parallelism_is_slower_without_nvlink() -> None:
    """Over PCIe the exchange of activations takes more than twice as large a share of the step."""
    fast = timed(gpus=4, framework="megatron", tensor=4, gpu="a100-40gb")
    slow = timed(gpus=4, framework="megatron", tensor=4, gpu="l40s")
    assert slow.exchanges.tensor / slow.seconds > 2 * fast.exchanges.tensor / fast.seconds
    assert slow.exchanges.tensor == max(slow.exchanges)


def test_sharding_over_nodes_waits_for_the_network() -> None:
    """FSDP of a short step over many nodes of one GPU each exposes what NVLink hides in one node."""
    near = timed(gpus=8, zero_stage=3, sequence_length=1024)
    far = timed(gpus=64, zero_stage=3, sequence_length=1024, tensor=8)
    assert far.exchanges.data / far.seconds > 2 * near.exchanges.data / near.seconds


def test_offload_takes_the_host_link() -> None:
    """An optimizer on the host adds transfers and its own step, and says what rate it assumes."""
    here = timed(framework="deepspeed", zero_stage=2)
    there = timed(framework="deepspeed", zero_stage=2, optimizer={"name": "adamw", "offload": "cpu"})
    assert here.offload_seconds == 0
    assert there.offload_seconds > 0
    assert any("host" in a.key for a in there.assumptions)


def test_foreach_optimizers_move_more_than_fused_ones() -> None:
    """AdamW operation by operation reads and writes about three times what one kernel does."""
    fused, foreach = (
        timed(gpus=1, framework="pytorch", optimizer={"name": "adamw", "implementation": kind}).hbm_seconds
        for kind in ("fused", "foreach")
    )
    assert foreach > fused


def test_a_missing_rate_is_an_error_with_a_remedy() -> None:
    """A GPU without a rate for the job's dtype is never timed as if it had one."""
    with pytest.raises(MissingRateError) as caught:
        timed(gpu="t4", zero_stage=3)
    assert "bf16" in caught.value.message
    assert "bf16_tflops" in caught.value.help
    with pytest.raises(MissingRateError):
        timed(gpu="v100-32gb", zero_stage=3)


def test_the_96_gb_h100_is_slower_where_memory_decides() -> None:
    """It has the arithmetic of the SXM and 2,400 of its 3,350 GB/s."""
    narrow, wide = (timed(gpu=gpu, zero_stage=3) for gpu in ("h100-96gb", "h100-80gb"))
    assert narrow.compute_seconds == pytest.approx(wide.compute_seconds, rel=0.02)
    assert narrow.hbm_seconds == pytest.approx(wide.hbm_seconds * 3350 / 2400, rel=0.02)


def test_what_is_assumed_about_a_gpu_is_listed() -> None:
    """An L40S's record has no network: NCCL's default adapter is used, and listed."""
    assert [a.key for a in timed(gpu="l40s", zero_stage=3).assumptions] == [
        "hardware.gpu.network_gbs",
        "matrix products",
    ]
    assert timed(gpu="h100-80gb", zero_stage=3).assumptions == ()


def test_a_rough_model_has_no_time() -> None:
    """A rough model states no layers: a typed error."""
    rough = job()._replace(architecture=Rough(7_000_000_000, 32, 4096, 10, None))
    with pytest.raises(UnsupportedError):
        step_time(rough, find_gpu("h100-80gb"))


def test_offloading_fsdp_takes_the_optimizer_along() -> None:
    """CPUOffloadPolicy keeps gradients and states on the host: its processors update them, not the GPU."""
    here, there = timed(zero_stage=3), timed(zero_stage=3, offload={"parameters": "cpu"})
    update = 8.03e9 / 8 * 8 / HOST_ADAM_PER_SECOND
    assert there.offload_seconds > update
    assert there.hbm_seconds < here.hbm_seconds
    assert any("host" in a.key for a in there.assumptions)


def test_offloaded_experts_are_divided_among_fewer_ranks() -> None:
    """Each expert is cut among the ranks that have it: of 8, one with ``expert: 8``, all of them without."""
    keys = {"zero_stage": 3, "offload": {"parameters": "cpu"}}
    cut, whole = (timed("mixtral-8x7b", 8, expert=degree, **keys).offload_seconds for degree in (1, 8))
    assert whole == pytest.approx(cut, rel=0.01)


def test_a_fused_kernel_is_faster_on_the_host() -> None:
    """torch's optimizer takes one loop there, or one for every operation; DeepSpeed and Megatron bring one loop."""

    def offload(framework: str, kind: str) -> float:
        optimizer = {"name": "adamw", "implementation": kind}
        if framework != "torchtitan":
            return timed(
                framework=framework, zero_stage=1, optimizer={"name": "adamw", "offload": "cpu"}
            ).offload_seconds
        return timed(zero_stage=3, offload={"parameters": "cpu"}, optimizer=optimizer).offload_seconds

    update = 8.03e9 / HOST_ADAM_PER_SECOND
    slower = offload("torchtitan", "foreach") - offload("torchtitan", "fused")
    assert slower == pytest.approx((TORCH_SLOWER - 1) * update, rel=0.01)
    assert update < offload("megatron", "") < 2 * update


def test_sharded_gradients_of_megatron_are_reduced_every_micro_batch() -> None:
    """``optim_grads`` has no whole gradient to add up in, the distributed optimizer has."""
    optim, grads = (
        timed(gpus=16, framework="megatron", zero_stage=stage, gradient_accumulation_steps=8).exchanges.data
        for stage in (1, 2)
    )
    assert grads > 4 * optim


def test_fp8_of_torchtitan_gathers_in_fp8() -> None:
    """Hidden states are cast before they are gathered over the tensor ranks, and reduced in 16 bits: three quarters."""
    wide, narrow = (
        timed("llama-3.1-70b", 64, tensor=8, zero_stage=3, compile=True, precision=recipe).exchanges.tensor
        for recipe in ("bf16-mixed", "fp8-mixed")
    )
    assert narrow / wide == pytest.approx(0.75, abs=0.03)


def test_fp8_casts_a_shared_input_once() -> None:
    """Queries, keys and values read one cast, gate and up another; eight tensor ranks cast an eighth of them each."""
    architecture = catalog_architecture("llama-3.1-70b")
    shape = shape_of(job("llama-3.1-70b", 64, tensor=8, zero_stage=3, compile=True, precision="fp8-mixed"))
    found = products(architecture.blocks[0][0], shape, trained=True)
    casts = {p.name.rpartition(".")[2]: p.cast_input_elements for p in found}
    assert casts["q_proj"] == casts["gate_proj"] == 8192 // 8 * 8192
    assert casts["k_proj"] == casts["v_proj"] == casts["up_proj"] == 0
    assert casts["down_proj"] == 8192 * 28672 // 8


def test_torch_rings_merge_what_each_block_gives() -> None:
    """torch's ring moves every output once more for each block in fp32, Transformer Engine's in 16 bits; torchtitan's
    main branch has no ring.
    """
    release, main, megatron = (
        [timed(context=n, sequence_length=65536, **keys).hbm_seconds * n for n in (1, 8)]
        for keys in ({"framework_version": "0.2.2"}, {}, {"framework": "megatron"})
    )
    assert release[1] - release[0] > 1.5 * (megatron[1] - megatron[0])
    assert main[1] - main[0] < megatron[1] - megatron[0]
