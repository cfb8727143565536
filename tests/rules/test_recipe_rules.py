"""Hardware, precision, recipe and options against what GPUs and frameworks can do."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import Gpu, compute_capability, lacks_bf16, lacks_fp8
from tests.rules.plans import found

HF = "framework: huggingface"
ROUGH = "{rough: {parameters: 1B, layers: 8, hidden_size: 1024, activation_multiplier: 10}}"


@pytest.mark.parametrize(
    ("arch", "capability", "no_bf16", "no_fp8"),
    [
        ("sm_70", 70, True, True),
        ("sm_75", 75, True, True),
        ("sm_80", 80, False, True),
        ("sm_86", 86, False, True),
        ("sm_89", 89, False, False),
        ("sm_90", 90, False, False),
        ("sm_100", 100, False, False),
        ("sm_121", 121, False, False),
        ("gfx906", None, True, True),
        ("gfx90a", None, False, True),
        ("gfx942", None, False, False),
        ("gfx950", None, False, False),
        ("hpu", None, False, False),
        (None, None, False, False),
    ],
)
def test_abilities(arch: str | None, capability: int | None, no_bf16: bool, no_fp8: bool) -> None:
    """Only what is known to be missing is missing; an unknown architecture is given the benefit of the doubt."""
    gpu = Gpu("x", 1, arch)
    assert (compute_capability(gpu), lacks_bf16(gpu), lacks_fp8(gpu)) == (capability, no_bf16, no_fp8)


@pytest.mark.parametrize(
    ("gpu", "precision", "codes"),
    [
        ("t4", "bf16-mixed", ["MEM301"]),
        ("t4", "bf16-pure", ["MEM301"]),
        ("t4", "fp16-mixed", []),
        ("a100-80gb", "fp8-mixed", ["MEM302"]),
        ("h100-80gb", "fp8-mixed", []),
        ("mi300x", "fp8-mixed", []),
    ],
)
def test_precision_needs_hardware(gpu: str, precision: str, codes: list[str]) -> None:
    """A recipe whose arithmetic the GPU lacks is an error."""
    training = f"{HF}, precision: {precision}"
    assert [f.code for c in ("MEM301", "MEM302") for f in found(c, training=training, gpu=gpu)] == codes


@pytest.mark.parametrize(
    ("gpu", "training", "reason"),
    [
        ("h100-80gb", "attention: flash", ""),
        ("t4", "attention: flash, precision: fp16-mixed", "needs Ampere"),
        ("h100-80gb", "attention: flash, precision: fp32", "computes in fp16 or bf16 only"),
        ("t4", "attention: sdpa, precision: fp32", ""),
    ],
)
def test_flash_attention(gpu: str, training: str, reason: str) -> None:
    """The flash kernels need a GPU and a dtype of theirs."""
    messages = [f.message for f in found("MEM303", training=f"{HF}, {training}", gpu=gpu)]
    assert bool(messages) == bool(reason)
    assert all(reason in m for m in messages)


@pytest.mark.parametrize(
    ("model", "length", "severity"),
    [("gpt2", 1024, ""), ("gpt2", 1025, "error"), ("llama-3.1-8b", 131072, ""), ("llama-3.1-8b", 131073, "warning")],
)
def test_positions(model: str, length: int, severity: str) -> None:
    """Learned positions end where the table ends; rotary ones only lose quality."""
    training = f"{HF}, micro_batch_size: 1, sequence_length: {length}"
    findings = found("MEM401", training=training, model=model, defaults="")
    assert [f.severity for f in findings] == ([severity] if severity else [])


def test_positions_bound_the_served_context() -> None:
    """An inference plan is held to the same limit at its own key."""
    (finding,) = found("MEM401", inference="batch_size: 1, context_length: 4096", model="gpt2")
    assert finding.pointer == "/inference/context_length"


@pytest.mark.parametrize(
    ("training", "suggested"),
    [
        ("global_batch_size: 64", ""),
        ("global_batch_size: 60", "use 56 or 64"),
        ("global_batch_size: 4", "use 8"),
        ("gradient_accumulation_steps: 3", ""),
    ],
)
def test_global_batch(training: str, suggested: str) -> None:
    """Whole passes over eight GPUs make up the global batch; the nearest that would are named."""
    helps = [f.help for f in found("MEM402", training=f"{HF}, {training}")]
    assert helps == ([suggested] if suggested else [])


@pytest.mark.parametrize(
    ("framework", "options", "code", "text"),
    [
        ("deepspeed", "reduce_bucket_size: 50000000", "", ""),
        ("deepspeed", "reduce_bucket_size: auto", "", ""),
        ("deepspeed", "reduce_bucket_sise: 1", "MEM404", "did you mean `reduce_bucket_size`"),
        ("deepspeed", "recompute_method: block", "MEM404", "it is an option of megatron"),
        ("deepspeed", "reduce_bucket_size: large", "MEM406", "takes auto or a whole number from 0, not 'large'"),
        ("deepspeed", "reduce_bucket_size: true", "MEM406", "takes auto or a whole number from 0, not true"),
        ("megatron", "ddp_bucket_size: -1", "MEM406", "takes a whole number from 0, not -1"),
        ("megatron", "recompute_modules: [{a: 1}]", "MEM406", "takes a list or a word, not [{'a': 1}]"),
        ("deepspeed", "overlap_comm: 1", "MEM406", "takes true or false, not 1"),
        ("megatron", "recompute_modules: [core_attn]", "", ""),
        ("megatron", "cp_comm_type: a2a", "", ""),
        ("megatron", "transformer_impl: te", "MEM406", "takes local, transformer_engine or inference_optimized"),
        ("torchtitan", "selective_ac_option: op", "", ""),
        ("torchtitan", "selective_ac_option: 2", "", ""),
    ],
)
def test_options(framework: str, options: str, code: str, text: str) -> None:
    """Options are known by name, type and, where upstream lists them, by their words."""
    training = f"framework: {framework}, options: {{{options}}}"
    findings = [*found("MEM404", training=training), *found("MEM406", training=training)]
    assert [f.code for f in findings] == ([code] if code else [])
    assert all(text in f"{f.message} {f.help}" for f in findings)


@pytest.mark.parametrize(
    ("parallelism", "training", "fault"),
    [
        ("zero_stage: 1", "options: {use_distributed_optimizer: true}", ""),
        ("zero_stage: 3", "options: {use_distributed_optimizer: true}", ""),
        ("", "options: {use_distributed_optimizer: true}", ""),
        ("zero_stage: 0", "options: {use_distributed_optimizer: true}", "means `zero_stage: 1`, but the plan has 0"),
        ("zero_stage: 1", "options: {use_distributed_optimizer: false}", "means `zero_stage: 0`"),
        ("", "options: {recompute_granularity: full}", ""),
        ("", "activation_checkpointing: none, options: {recompute_granularity: full}", "the plan has 'none'"),
        ("zero_stage: 1", "options: {data_parallel_sharding_strategy: optim_grads}", "means `zero_stage: 2`"),
    ],
)
def test_options_agree_with_the_plan(parallelism: str, training: str, fault: str) -> None:
    """An option that has a key of its own in the plan must say the same."""
    messages = [f.message for f in found("MEM409", parallelism, f"framework: megatron, {training}")]
    assert bool(messages) == bool(fault)
    assert all(fault in m for m in messages)


@pytest.mark.parametrize(
    ("parallelism", "recompute", "keys"),
    [
        ("expert: 4", "none", []),
        ("expert: 4, pipeline: 2, pipeline_schedule: interleaved-1f1b, virtual_stages: 2", "none", []),
        ("expert: 4, pipeline: 2", "none", ["virtual_stages"]),
        ("expert: 1", "none", ["expert"]),
        ("expert: 4", "full", ["activation_checkpointing"]),
        ("expert: 4", "{mode: selective, modules: [core_attn]}", []),
        ("expert: 4", "{mode: selective, modules: [core_attn, moe]}", ["activation_checkpointing"]),
    ],
)
def test_megatron_hides_routing_only_where_it_can(parallelism: str, recompute: str, keys: list[str]) -> None:
    """``overlap_moe_expert_parallel_comm`` stops without experts apart, with a pipeline of whole stages, and where the
    experts are recomputed.
    """
    options = "options: {overlap_moe_expert_parallel_comm: true, moe_token_dispatcher_type: alltoall}"
    training = f"framework: megatron, activation_checkpointing: {recompute}, {options}"
    findings = found("MEM409", parallelism, training, model="mixtral-8x7b")
    assert len(findings) == len(keys)
    assert all(f"means `{key}: " in f.message for f, key in zip(findings, keys, strict=True))


@pytest.mark.parametrize(("stage", "dtype", "reported"), [(0, "fp32", True), (0, "bf16", False), (1, "fp32", False)])
def test_deepspeed_sums_in_another_dtype_only_under_zero(stage: int, dtype: str, reported: bool) -> None:
    """Its engine stops at the start with "unsupported mix" otherwise."""
    training = f"framework: deepspeed, options: {{grad_accum_dtype: {dtype}}}"
    assert bool(found("MEM409", f"zero_stage: {stage}", training)) == reported


@pytest.mark.parametrize(
    ("framework", "setting", "pointer"),
    [
        ("megatron", "loss: fused-linear", "/training/loss"),
        ("megatron", "loss: standard", ""),
        ("torchtitan", "attention: eager", "/training/attention"),
        ("torchtitan", "method: qlora", "/training/method"),
        ("deepspeed", "activation_checkpointing: selective", "/training/activation_checkpointing"),
        ("huggingface", "loss: vocab-parallel", "/training/loss"),
        ("pytorch", "loss: vocab-parallel", ""),
    ],
)
def test_settings_of_the_framework(framework: str, setting: str, pointer: str) -> None:
    """A setting that the framework lacks is reported at its own key."""
    findings = found("MEM408", training=f"framework: {framework}, {setting}")
    assert [f.pointer for f in findings] == ([pointer] if pointer else [])


@pytest.mark.parametrize(
    ("framework", "parallelism", "training", "reason"),
    [
        ("deepspeed", "zero_stage: 2", "optimizer: {name: adamw, offload: cpu}", ""),
        ("deepspeed", "", "optimizer: {name: adamw, offload: cpu}", "only with a ZeRO stage"),
        ("deepspeed", "zero_stage: 3", "offload: {parameters: nvme}", ""),
        ("huggingface", "zero_stage: 3", "offload: {parameters: nvme}", "to NVMe"),
        ("huggingface", "zero_stage: 3", "offload: {parameters: cpu}", ""),
        ("huggingface", "", "optimizer: {name: adamw, offload: cpu}", "only with FSDP2"),
        ("megatron", "zero_stage: 3", "offload: {parameters: cpu}", "does not offload parameters"),
        ("megatron", "", "optimizer: {name: adamw, offload: cpu}", ""),
    ],
)
def test_offload(framework: str, parallelism: str, training: str, reason: str) -> None:
    """What cannot be offloaded stays on the GPU, and the plan is told so."""
    messages = [f.message for f in found("MEM412", parallelism, f"framework: {framework}, {training}")]
    assert bool(messages) == bool(reason)
    assert all(reason in m for m in messages)


@pytest.mark.parametrize(
    ("freeze", "faults"),
    [
        ('["layers:0-32"]', 0),
        ('[embed, "layers:0-16"]', 0),
        ('["layers:0-33"]', 1),
        ('["layers:8-8"]', 1),
        ('["layers:0-33", "layers:40-50"]', 2),
    ],
)
def test_frozen_ranges(freeze: str, faults: int) -> None:
    """Ranges of frozen layers lie within the model's 32 layers."""
    assert len(found("MEM410", training=f"{HF}, freeze: {freeze}")) == faults


def test_other_recipe_rules_speak_where_they_should() -> None:
    """Adapters without a method, a foreign recipe and ignored mixed precision are reported, and only they."""
    assert found("MEM405", training=f"{HF}, lora: {{rank: 8}}")
    assert not found("MEM405", training=f"{HF}, method: qlora, lora: {{rank: 8}}")
    assert found("MEM407", training="framework: deepspeed, precision: fp8-mixed")
    assert not found("MEM407", training=f"{HF}, precision: fp8-mixed")
    assert found("MEM411", "tensor: 4", "framework: torchtitan")
    assert not found("MEM411", "tensor: 4, zero_stage: 3", "framework: torchtitan")
    assert found("MEM209", "sequence: true", "framework: megatron")
    assert not found("MEM209", "sequence: true, tensor: 2", "framework: megatron")
    assert found("MEM213", training=HF, gpus_per_node=64)
    assert not found("MEM213", training=HF, gpus_per_node=16)
    assert found("MEM204", "tensor: 2", "framework: pytorch", model="gpt2", gpus_per_node=2)
    assert not found("MEM204", "tensor: 2", "framework: megatron", model="gpt2", gpus_per_node=2)


@pytest.mark.parametrize(
    ("training", "speaks"),
    [
        ("activation_checkpointing: selective", True),
        ("activation_checkpointing: {mode: selective, modules: [core_attn, mlp]}", True),
        ("options: {recompute_granularity: selective, recompute_modules: [core_attn]}", True),
        ("activation_checkpointing: {mode: selective, modules: [mlp]}", False),
        ("activation_checkpointing: selective, attention: eager", False),
        ("activation_checkpointing: selective, options: {transformer_impl: local}", False),
        ("activation_checkpointing: selective, options: {attention_backend: unfused}", False),
        ("activation_checkpointing: full", False),
        ("activation_checkpointing: none", False),
    ],
)
def test_recomputing_a_flash_kernel_frees_nothing(training: str, speaks: bool) -> None:
    """Reported where flash or fused attention is recomputed, with what the checkpoint's arguments cost."""
    findings = found("MEM414", "tensor: 8", f"framework: megatron, {training}", gpus_per_node=8)
    assert bool(findings) == speaks
    if speaks:
        assert "costs" in findings[0].message


def test_what_a_layout_of_other_gpus_costs_is_not_said() -> None:
    """More stages than GPUs have no estimate: recomputed core attention is named without its cost."""
    (finding,) = found("MEM414", "pipeline: 16", "framework: megatron, activation_checkpointing: selective")
    assert "costs" not in finding.message


@pytest.mark.parametrize(
    ("model", "training", "text"),
    [
        ("llama-3.1-8b", "method: lora, lora: {target_modules: [q_proj, self_attn.v_proj]}", ""),
        ("llama-3.1-8b", "method: lora, lora: {target_modules: q_prj}", "did you mean `q_proj`"),
        ("llama-3.1-8b", "method: lora, lora: {target_modules: [q_proj, lm_head]}", ""),
        ("llama-3.1-8b", "method: lora, lora: {target_modules: [q_proj, head]}", "there are q_proj, k_proj"),
        ("mixtral-8x7b", "method: lora, lora: {target_modules: [w1, w2, w3, gate]}", ""),
        ("gpt2", "method: lora, lora: {target_modules: [c_attn]}", ""),
        ("qwen3-30b-a3b", "method: lora, lora: {target_parameters: [mlp.experts.down_proj]}", ""),
        (
            "qwen3-30b-a3b",
            "method: lora, lora: {target_parameters: [w9]}",
            "no stacked experts of the blocks are called `w9`",
        ),
        ("gpt2", "method: lora, lora: {target_parameters: [w1]}", "no stacked experts of the blocks are called `w1`"),
        ("gpt2", "method: lora, lora: {target_modules: [q_proj]}", "no linear layer of the blocks is called `q_proj`"),
        ("falcon-h1-7b", "method: lora, lora: {target_modules: [q_proj, in_proj]}", ""),
        (
            "falcon-h1-7b",
            "method: lora, lora: {target_modules: [q_proj, out_proj]}",
            "`out_proj` reaches `out_proj`, at which",
        ),
        ("nemotron-3-nano-30b-a3b", "method: lora", "`all-linear` reaches `out_proj`, at which peft stops"),
        ("llama-3.1-8b", 'freeze: [embed, head, norm, "layers:0-4", mlp, self_attn.q_proj, input_layernorm]', ""),
        ("llama-3.1-8b", "freeze: [embd]", "did you mean `embed`"),
        ("llama-3.1-8b", "activation_checkpointing: {mode: full, modules: [mlp]}", "is not modelled"),
        (ROUGH, "freeze: [anything]", ""),
    ],
)
def test_modules_exist(model: str, training: str, text: str) -> None:
    """Adapters and frozen parts name modules of the model's blocks, by path or last part."""
    findings = found("MEM413", model=model, training=f"{HF}, {training}")
    assert [text in f"{f.message}; {f.help}" for f in findings] == ([True] if text else [])


@pytest.mark.parametrize(
    ("targets", "severities"),
    [("[q_proj, o_proj]", ["warning"]), ("[q_proj]", ["error"]), ("[q_proj, k_proj]", ["error", "error"])],
)
def test_peft_ignores_a_target_where_others_are_found(targets: str, severities: list[str]) -> None:
    """GLM-4.7-Flash has `o_proj` and no `q_proj`: peft stops only where no target is found."""
    training = f"{HF}, method: lora, lora: {{target_modules: {targets}}}"
    findings = found("MEM413", model="glm-4.7-flash", training=training)
    assert [f.severity for f in findings] == severities


@pytest.mark.parametrize(
    ("training", "text"),
    [
        ("activation_checkpointing: {mode: selective, modules: [core_attn, mlp]}", ""),
        ("activation_checkpointing: {mode: selective, modules: [mpl]}", "did you mean `mlp`"),
        ("options: {recompute_granularity: selective, recompute_modules: [core_atn]}", "did you mean `core_attn`"),
        ("options: {recompute_granularity: selective, recompute_modules: moe_act mlpp}", "no module `mlpp`"),
    ],
)
def test_recomputed_modules_exist(training: str, text: str) -> None:
    """Megatron recomputes what its own list names."""
    findings = found("MEM413", parallelism="tensor: 8", training=f"framework: megatron, {training}")
    assert [text in f"{f.message}; {f.help}" for f in findings] == ([True] if text else [])


@pytest.mark.parametrize(("name", "text"), [("self_attn", ""), ("core_attn", "no module `core_attn` to recompute")])
def test_modules_in_checkpoints_of_their_own_exist(name: str, text: str) -> None:
    """Under plain PyTorch the modules are those of transformers' layers."""
    training = f"framework: pytorch, activation_checkpointing: {{modules: [{name}]}}"
    findings = found("MEM413", training=training)
    assert [text in f.message for f in findings] == ([True] if text else [])
