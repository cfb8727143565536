"""States, sharding, pipelines, optimizer temporaries, inference, rough models, host memory."""

from __future__ import annotations

import pytest

from benchmarks.score import answer
from memcheck.accounts.estimate import COMPONENTS
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes, shard_numel
from memcheck.autograd.tensor import rounded
from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.families.registry import read_architecture
from memcheck.frameworks.deepspeed.step import HOST
from memcheck.frameworks.torch.pipelining import in_flight, stage_parts
from memcheck.frameworks.torch.resident import step_temporaries
from memcheck.frameworks.torch.units import base_setting, block_curve
from memcheck.job.types import Checkpointing, InferenceJob, Layout, Lora, Loss, Optimizer, Overhead, Recipe
from memcheck.memory.estimate import estimate
from memcheck.memory.inference import kv_bytes_per_sequence
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Rough
from tests.memory.jobs import BF16_FSDP, BIG_GPU, FULL, job, llama_8b, sharded

GIB = 2**30
P = 8_030_261_248
DEEPSPEED = Recipe("bf16-mixed", "bf16", "bf16", "bf16", "fp32", "fp32", "bf16", autocast=False)


def at_rest(**changes: object) -> dict[str, int]:
    """Component bytes before the step begins."""
    return estimate(job(**changes), BIG_GPU).ranks[0].instants[0].components_bytes


def test_components_add_up_to_the_device_bytes() -> None:
    """Every byte belongs to exactly one component, at the peak and at every instant."""
    for case in (job(), job(recipe=BF16_FSDP, layout=sharded(8)), job(method="lora", lora=Lora())):
        found = estimate(case, Gpu("h100-80gb", 79 * GIB, "sm_90"))
        assert sum(found.components_bytes.values()) == found.device_bytes
        assert set(found.components_bytes) <= set(COMPONENTS)
        assert found.allocated_bytes <= found.reserved_bytes <= found.device_bytes
        for instant in found.ranks[0].instants:
            assert sum(instant.components_bytes.values()) == instant.allocated_bytes
            assert min(instant.components_bytes.values()) > 0


def test_parameters_rest_in_their_dtype() -> None:
    """8.03 B parameters in bf16 are 14.96 GiB; AdamW keeps two states of the same dtype."""
    found = at_rest()
    assert found["parameters"] == pytest.approx(2 * P, rel=1e-4)
    assert found["optimizer_states"] == pytest.approx(4 * P, rel=1e-4)


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "states"),
    [(1, 2 * P, 0, 12 * P / 8), (2, 2 * P, 0, 12 * P / 8), (3, 2 * P / 8, 2 * P / 8, 12 * P / 8)],
)
def test_zero_stages_divide_what_deepspeed_divides(
    stage: int, parameters: float, gradients: float, states: float
) -> None:
    """Stages 1 and 2 divide master weights and states, 3 parameters and gradients too (frameworks' 2 + 2 + 12 bytes);
    before 3, gradients do not rest from step to step.
    """
    layout = Layout(gpus_per_node=8, data=8, zero_stage=stage, shard_group=8)
    found = at_rest(framework="deepspeed", recipe=DEEPSPEED, layout=layout, optimizer=Optimizer("adamw", "fused"))
    assert found["parameters"] == pytest.approx(parameters, rel=1e-3)
    assert found.get("gradients", 0) == pytest.approx(gradients, rel=1e-3)
    assert found["master_weights"] + found["optimizer_states"] == pytest.approx(states, rel=1e-3)


def test_tensor_and_pipeline_parallelism_divide_every_state() -> None:
    """Gradients and optimizer states of ZeRO 0 are cut by tensor and pipeline like the parameters are."""
    whole = at_rest()
    cut = at_rest(layout=Layout(gpus_per_node=8, tensor=4, pipeline=2), gradient_accumulation_steps=8)
    for component in ("parameters", "optimizer_states"):
        assert cut[component] < whole[component] / 8 * 1.15, "the embedding makes the first stage a little larger"


def test_an_expert_is_divided_by_expert_parallelism_not_by_tensor() -> None:
    """EP divides experts; the dense part is not divided."""
    moe = read_architecture(
        {
            "model_type": "qwen3_moe",
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 4096,
            "moe_intermediate_size": 4096,
            "vocab_size": 32000,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        }
    )
    experts = 4 * 8 * 3 * 1024 * 4096
    dense = count_parameters(moe) - experts
    found = estimate(job(moe, framework="torchtitan", layout=Layout(gpus_per_node=8, data=8, expert=8)), BIG_GPU).ranks[
        0
    ]
    assert found.parameters == dense + experts // 8


def test_shards_of_few_rows_are_padded() -> None:
    """FSDP2 cuts dim 0: eight experts on 32 ranks leave a whole expert on each of the first eight."""
    stacked = LocalTensor("experts", (8, 100, 10), trained=True)
    assert shard_numel(stacked, 32) == 1000
    assert shard_numel(stacked, 8) == 1000
    assert shard_numel(stacked, 4) == 2000


def test_eight_bit_states_have_a_byte_per_element_and_scales() -> None:
    """bitsandbytes: one byte per element, one fp32 absmax per 256, small tensors in fp32."""
    big = LocalTensor("w", (1024, 1024), trained=True, matrix=True)
    assert optimizer_state_bytes(big, 2**20, "adamw-8bit", "fp32") == 2 * (2**20 + 4 * 4096)
    small = LocalTensor("b", (1024,), trained=True)
    assert optimizer_state_bytes(small, 1024, "adamw-8bit", "bf16") == 2 * 4096


def test_flash_adamw_holds_both_moments_and_the_rest_of_a_24_bit_master_in_a_byte_each() -> None:
    """A 16-bit scale for 32 elements of a moment; parameters in fp32 have no other master."""
    big = LocalTensor("w", (1024, 1024), trained=True, matrix=True)
    moments = 2 * (2**20 + 2 * 2**15)
    assert optimizer_state_bytes(big, 2**20, "flash-adamw", "bf16") == moments + 2**20
    assert optimizer_state_bytes(big, 2**20, "flash-adamw", "fp32") == moments
    assert optimizer_state_bytes(big, 2**20, "flash-adamw-32", "bf16") == moments + 2**21


def test_transformer_engine_adds_an_fp32_master_to_fp32_moments() -> None:
    """Of parameters in 16 bits; those in fp32 are their own."""
    big = LocalTensor("w", (1024, 1024), trained=True, matrix=True)
    assert optimizer_state_bytes(big, 2**20, "te-fused-adam", "bf16") == 3 * 2**22
    assert optimizer_state_bytes(big, 2**20, "te-fused-adam", "fp32") == 2 * 2**22


def test_paged_states_are_seen_and_not_needed() -> None:
    """Large tensors' states lie in managed memory: full 8-bit training of 8B fits a GPU of 24 GB but for its cache."""
    training = {"framework": "torchtune", "micro_batch_size": 2, "sequence_length": 512}
    plan = {"memcheck": 1, "model": "llama-3.1-8b", "hardware": {"gpu": "h100-80gb"}}
    optimizer = {"name": "paged-adamw-8bit", "in_backward": True}
    recompute = {"activation_checkpointing": "full", "optimizer": optimizer}
    found = answer({**plan, "training": {**training, **recompute}})
    assert found.needed_bytes < 24e9
    assert found.device_bytes - found.needed_bytes > 2 * 8.0e9


@pytest.mark.parametrize(
    ("optimizer", "bytes_of_a_moment"),
    [
        ("adamw-torchao-8bit", 2**20 + 4 * 4096 + 1024),
        ("adamw-torchao-4bit", 2**19 + 4 * 8192 + 512),
        ("adamw-torchao-fp8", 2**20 + 4 * 4096),
    ],
)
def test_torchao_holds_codes_scales_and_a_table_for_each_moment(optimizer: str, bytes_of_a_moment: int) -> None:
    """Tensors that are no whole number of blocks keep moments in their own dtype."""
    big = LocalTensor("w", (1024, 1024), trained=True, matrix=True)
    assert optimizer_state_bytes(big, 2**20, optimizer, "bf16") == 2 * bytes_of_a_moment
    odd = LocalTensor("w", (1025, 1023), trained=True, matrix=True)
    assert optimizer_state_bytes(odd, 1025 * 1023, optimizer, "bf16") == 2 * rounded(2 * 1025 * 1023)


def test_torchao_steps_its_largest_tensor_in_fp32() -> None:
    """What Inductor keeps of the compiled step: both moments in fp32 and their scales, of the largest tensor alone."""
    big = LocalTensor("w", (1024, 1024), trained=True, matrix=True)
    small = LocalTensor("v", (64, 1024), trained=True, matrix=True)
    both = [(big, big.numel), (small, small.numel)]
    assert step_temporaries(both, "adamw-torchao-8bit", "foreach", "fp32") == 8 * 2**20 + 2 * 4 * 4096
    assert step_temporaries(both, "adamw-torchao-4bit", "fused", "fp32") == 26 * 2**20 + 2 * 4 * 8192
    assert step_temporaries(both, "adamw-torchao-fp8", "fused", "fp32") == 2 * 4 * 4096


def test_adafactor_keeps_rows_and_columns() -> None:
    """The second moment is factored; there is no first moment."""
    matrix = LocalTensor("w", (4096, 1024), trained=True, matrix=True)
    assert optimizer_state_bytes(matrix, 4096 * 1024, "adafactor", "fp32") == 4 * 4096 + 4 * 1024 + 512


@pytest.mark.parametrize(
    ("optimizer", "implementation", "expected"),
    [
        ("adamw", "foreach", 3 * 4096),
        ("adamw", "for-loop", 2 * 2 * 4096 + 4096),
        ("adamw", "fused", 0),
        ("sgd-momentum", "foreach", 0),
        ("adafactor", "for-loop", 2 * 2 * 4096 + 4096),
    ],
)
def test_the_step_implementation_decides_its_temporaries(optimizer: str, implementation: str, expected: int) -> None:
    """foreach AdamW copies every second moment, the loop two of the largest beside one of
    the tensor before, Adafactor's one beside that, the fused kernel nothing."""
    trained = [(LocalTensor("a", (1024,), trained=True), 1024), (LocalTensor("b", (2048,), trained=True), 2048)]
    assert step_temporaries(trained, optimizer, implementation, "fp32") == expected


@pytest.mark.parametrize(("implementation", "expected"), [("foreach", 4096 + 2 * 2048), ("for-loop", 3 * 4096)])
def test_temporaries_have_the_dtype_of_the_states(implementation: str, expected: int) -> None:
    """States are made like their tensor: an fp32 adapter's in fp32, whatever the recipe says of the others."""
    adapter = LocalTensor("a.lora_A", (1024,), trained=True, dtype="fp32")
    trained = [(adapter, 1024), (LocalTensor("b", (2048,), trained=True), 2048)]
    assert step_temporaries(trained, "adamw", implementation, "bf16") == expected


def test_layers_that_do_not_divide_go_to_the_first_ranks() -> None:
    """Every layer is on exactly one rank, the embedding on the first, the head on the last."""
    found = stage_parts(10, 4)
    assert [p.end_layer - p.first_layer for p in found] == [3, 3, 2, 2]
    assert (found[0].has_embedding, found[-1].has_head, found[1].has_embedding, found[1].has_head) == (
        True,
        True,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("schedule", "virtual", "rank", "expected"),
    [
        ("1f1b", 1, 0, 4),
        ("1f1b", 1, 3, 1),
        ("gpipe", 1, 3, 16),
        ("interleaved-1f1b", 2, 0, (2 * 3 + 4 + 1) / 2),
        ("zero-bubble", 1, 1, 3),
        ("dualpipe", 1, 2, 5),
    ],
)
def test_schedules_keep_their_number_of_micro_batches(schedule: str, virtual: int, rank: int, expected: float) -> None:
    """Micro-batches in flight on one of four ranks with sixteen micro-batches."""
    layout = Layout(gpus_per_node=4, pipeline=4, pipeline_schedule=schedule, virtual_stages=virtual)
    assert in_flight(rank, layout, 16) == expected
    assert in_flight(rank, layout, 1) <= 1


def test_the_first_pipeline_rank_is_the_worst_without_the_loss() -> None:
    """Under 1F1B the first rank keeps the most micro-batches; every rank is reported."""
    case = job(layout=Layout(gpus_per_node=4, pipeline=4), gradient_accumulation_steps=8, loss=Loss("fused-linear"))
    found = estimate(case, BIG_GPU)
    assert [r.pipeline_rank for r in found.ranks] == [0, 1, 2, 3]
    assert found.pipeline_rank == 0


def test_the_peak_is_not_the_sum() -> None:
    """Full activations and gradients never live together: the peak is below the sum of everything."""
    found = estimate(job(), BIG_GPU)
    instants = {i.name: i for i in found.ranks[0].instants}
    assert "gradients" not in instants["backward"].components_bytes
    assert "activations" in instants["backward"].components_bytes
    assert (
        found.allocated_bytes < 2 * P + 2 * P + 4 * P + instants["backward"].components_bytes["activations"] + 10 * GIB
    )


def test_offloaded_states_move_to_the_host() -> None:
    """ZeRO-Offload: fp32 master weights, gradients and states leave the GPU and are counted per node."""
    layout = Layout(gpus_per_node=8, data=8, zero_stage=2, shard_group=8)
    case = job(framework="deepspeed", recipe=DEEPSPEED, layout=layout, optimizer=Optimizer("adamw", "fused", "cpu"))
    case = case._replace(options=(("pin_memory", False),))
    found = estimate(case, BIG_GPU)
    assert "optimizer_states" not in found.components_bytes
    assert "master_weights" not in found.components_bytes
    table = 2 * 128_256 * 4096
    assert found.host_bytes_per_node == 18 * P + 8 * table
    assert found.host_components == HOST.states(case)
    expected = {"optimizer_states": 8 * P, "master_weights": 4 * P, "gradients": 4 * P}
    assert dict(HOST.states(case)) == {**expected, "communication_buffers": 2 * P + 8 * table}


def inference(**changes: object) -> InferenceJob:
    """Llama-3.1-8B serving eight sequences of 32,768 tokens on one GPU."""
    base = InferenceJob(llama_8b(), Layout(), 8, 32768, "bf16", "bf16")
    return base._replace(**changes)  # type: ignore[arg-type]


def test_the_cache_of_grouped_heads_is_counted_in_groups() -> None:
    """2 x 8 KV heads x 128 x 2 B x 32 layers = 131,072 bytes per token, not those of 32 heads."""
    found = estimate(inference(), BIG_GPU)
    assert found.components_bytes["kv_cache"] == 8 * 32768 * 131_072
    assert found.trainable_parameters == 0


def test_tensor_parallelism_cuts_weights_and_cache() -> None:
    """Four ranks hold two KV heads each; sixteen ranks cannot go below one."""
    four = estimate(inference(layout=Layout(gpus_per_node=4, tensor=4)), BIG_GPU).components_bytes
    assert four["kv_cache"] == 8 * 32768 * 131_072 // 4
    sixteen = estimate(inference(layout=Layout(nodes=2, gpus_per_node=8, tensor=16)), BIG_GPU).components_bytes
    assert sixteen["kv_cache"] == 8 * 32768 * 131_072 // 8


def test_latent_attention_caches_the_latent_only() -> None:
    """DeepSeek-V3: (512 + 64) elements per token and layer, whatever the heads."""
    block = read_architecture(
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "num_hidden_layers": 4,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 129280,
        }
    ).blocks[0][0]
    assert kv_bytes_per_sequence(block, 1, "bf16", 8) == 2 * 576


def test_quantised_weights_are_smaller_by_their_bits() -> None:
    """int4 with group scales takes 4.16 bits per matrix element; embedding, norms and head stay in bf16."""
    sizes = {w: estimate(inference(weights=w), BIG_GPU).components_bytes["parameters"] for w in ("bf16", "fp8", "int4")}
    outer = 2 * 128256 * 4096
    matrices = P - outer - 65 * 4096
    assert sizes["bf16"] == pytest.approx(2 * P, rel=1e-4)
    assert sizes["fp8"] == pytest.approx(2 * outer + matrices, rel=1e-3)
    assert sizes["int4"] == pytest.approx(2 * outer + matrices * 4.156 / 8, rel=1e-3)


def test_a_rough_model_prices_states_and_activations() -> None:
    """700 M parameters, 32 layers of 4,096, ten times the hidden state per layer."""
    rough = Rough(700_000_000, 32, 4096, 10.0, None)
    found = estimate(job()._replace(architecture=rough, sequence_length=2048), BIG_GPU)
    instants = {i.name: i for i in found.ranks[0].instants}
    assert instants["forward"].components_bytes["activations"] == 32 * 2048 * 4096 * 10 * 2
    assert instants["init"].allocated_bytes == pytest.approx(6 * 700e6, rel=1e-6)


def test_a_rough_model_cannot_be_adapted_or_served() -> None:
    """LoRA needs matrices and a KV cache needs heads: a located error, never a guess."""
    rough = Rough(700_000_000, 32, 4096, 10.0, None)
    with pytest.raises(UnsupportedError) as error:
        estimate(job()._replace(architecture=rough, method="lora", lora=Lora()), BIG_GPU)
    assert error.value.pointer == "/training/method"
    with pytest.raises(UnsupportedError) as error:
        estimate(inference(architecture=rough), BIG_GPU)
    assert error.value.pointer == "/model/rough"


def test_a_flat_overhead_replaces_the_itemised_one() -> None:
    """`overhead: 10%` adds a tenth of allocated and nothing else."""
    found = estimate(job(), BIG_GPU, Overhead("flat", 0.1))
    assert found.device_bytes == found.allocated_bytes + found.allocated_bytes // 10
    assert found.components_bytes.get("fragmentation", 0) == 0


def test_trained_parameters_are_counted() -> None:
    """LoRA of rank 16 on every matrix of Llama-3.1-8B trains 41,943,040 parameters."""
    found = estimate(job(method="lora", lora=Lora(16)), BIG_GPU)
    assert found.trainable_parameters == 41_943_040
    assert found.parameters == P + 41_943_040
    frozen = estimate(job(freeze=("embed", "layers:0-31")), BIG_GPU)
    assert frozen.trainable_parameters == 218_112_000 + 4096 + 128256 * 4096


def test_an_inventory_names_the_largest_tensors_and_the_formulas() -> None:
    """With an inventory the estimate lists live tensors and each component's arithmetic."""
    found = estimate(job(checkpointing=FULL), BIG_GPU, inventory=True)
    assert found.largest[0].bytes >= found.largest[-1].bytes > 0
    components = {f.component for f in found.formulas}
    assert {"parameters", "optimizer_states", "activations"} <= components
    assert all(f.source and f.numbers for f in found.formulas)


def test_the_same_job_gives_the_same_answer() -> None:
    """No clock, no randomness, no order of dictionaries: estimates are reproducible."""
    assert estimate(job(), BIG_GPU) == estimate(job(), BIG_GPU)


def test_more_of_everything_never_needs_less() -> None:
    """A longer sequence, a larger batch and more layers never shrink the peak."""
    base = estimate(job(sequence_length=1024), BIG_GPU).allocated_bytes
    assert estimate(job(sequence_length=2048), BIG_GPU).allocated_bytes > base
    assert estimate(job(sequence_length=1024, micro_batch_size=2), BIG_GPU).allocated_bytes > base
    assert estimate(job(llama_8b(33), sequence_length=1024), BIG_GPU).allocated_bytes > base


def test_offloaded_activations_move_to_the_host() -> None:
    """Checkpointed inputs leave the GPU: 32 layers of 2hT bytes per GPU, and the peak shrinks by as much."""
    kept = job(checkpointing=FULL, sequence_length=32768, optimizer=Optimizer("adamw", "fused"))
    gone = kept._replace(checkpointing=Checkpointing("full", offload="cpu"))
    found = estimate(gone, BIG_GPU)
    inputs = 32 * 2 * 4096 * 32768
    assert (found.host_bytes_per_node, found.host_components) == (inputs, (("activations", inputs),))
    assert estimate(kept, BIG_GPU).allocated_bytes - found.allocated_bytes == inputs


def test_ring_attention_gathers_the_whole_sequences_keys_while_a_layer_runs() -> None:
    """Splitting a sequence over ranks divides what is saved, not the keys and values of the layer at work."""
    curves = [
        block_curve(
            llama_8b().blocks[0][0],
            base_setting(job(), llama_8b(), None)._replace(sequence=8192, context_parallel=c),
            "none",
        )
        for c in (1, 8)
    ]
    assert curves[0].saved_bytes == curves[1].saved_bytes
    gathered = 2 * 2 * 1024 * 8192 * 8
    assert curves[1].forward_peak.bytes >= curves[0].saved_bytes / 2 + gathered
