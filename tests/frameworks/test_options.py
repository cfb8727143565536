"""Every option that a framework accepts counts somewhere, or is listed with the reason why it does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from memcheck.catalog.names import Gpu
from memcheck.errors import MemcheckError, UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.framework import Framework
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.plan.read import read_plan, with_changes
from memcheck.rules.run import check_layout, make_context
from memcheck.timing.step import step_time
from tests.rules.plans import document

STEP = "micro_batch_size: 2, sequence_length: 2048, gradient_accumulation_steps: 8"
DENSE, ROUTED = "qwen2.5-0.5b", "olmoe-1b-7b"
TORCHTITANS = {DENSE: "qwen3-0.6b", ROUTED: "qwen3-30b-a3b"}
"""What torchtitan builds instead."""
LAYOUTS: tuple[tuple[str, str, str], ...] = (
    (DENSE, "tensor: 2", ""),
    (DENSE, "zero_stage: 3", ""),
    (DENSE, "zero_stage: 1, context: 2", "activation_checkpointing: selective"),
    (DENSE, "pipeline: 2, virtual_stages: 2", "compile: true"),
    (ROUTED, "zero_stage: 1, expert: 2", ""),
    (ROUTED, "tensor: 2, expert: 2", "attention: eager"),
    ("gpt2", "tensor: 2", "activation_checkpointing: full"),
    (DENSE, "zero_stage: 3", "precision: fp8-mixed"),
    (DENSE, "tensor: 2", "precision: fp8-mixed"),
    (DENSE, "zero_stage: 3", "method: lora"),
    (DENSE, "", "method: qlora"),
    ("llama-3.1-8b", "zero_stage: 3", "activation_checkpointing: full"),
)
OFFLOADED = (DENSE, "zero_stage: 3", "optimizer: {name: adamw, offload: nvme}, offload: {parameters: nvme}")
SHARED = "activation_checkpointing: {mode: selective, modules: [shared_experts]}"
OWN = {
    "bridge_backend": ((DENSE, "tensor: 2", "method: lora, lora: {rank: 8}"),),
    "moe_shared_expert_overlap": (("qwen1.5-moe-a2.7b", "expert: 2", SHARED),),
    **dict.fromkeys(("pin_memory", "buffer_count", "buffer_size"), (OFFLOADED,)),
    "dispatcher": ((ROUTED, "zero_stage: 3, expert: 2", "precision: bf16-pure"),),
    "fsdp_version": ((DENSE, "zero_stage: 3, gradient_sync: last", ""),),
    "wraps_adapters": ((DENSE, "zero_stage: 3", "method: lora"),),
    "reference_fsdp": ((DENSE, "zero_stage: 3", "objective: dpo, reference: resident"),),
    "vit_gradient_checkpointing": (
        ("qwen2.5-vl-7b", "", "method: lora, activation_checkpointing: full, images: {per_sample: fill}"),
    ),
    "tp_recompute_allgather": ((DENSE, "tensor: 2, sequence: true", ""),),
    **dict.fromkeys(
        ("reduce_scatter", "use_multi_rank_bucket_allreduce"),
        ((DENSE, "zero_stage: 2", "activation_checkpointing: full, loss: fused-linear"),),
    ),
    "fp32_embeddings": ((DENSE, "", "precision: {recipe: bf16-mixed, params: bf16}"),),
    "prepare_model_for_kbit_training": ((DENSE, "", "method: qlora, precision: bf16-pure"),),
}
"""Layouts of options that count in few."""
AWARE: dict[str, object] = {"use_precision_aware_optimizer": True}
BESIDE: dict[str, dict[str, object]] = {
    "wraps_adapters": {"fsdp_version": 1},
    "cross_entropy_fusion_impl": {"cross_entropy_loss_fusion": True},
    "moe_flex_dispatcher_backend": {"moe_token_dispatcher_type": "flex"},
    "moe_pad_expert_input_to_capacity": {"moe_expert_capacity_factor": 1.5},
    "moe_shared_expert_overlap": {"moe_token_dispatcher_type": "alltoall"},
    **dict.fromkeys(("store_param_remainders", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), AWARE),
    "optimizer_offload_fraction": {"optimizer_cpu_offload": True},
    "wgrad_deferral_limit": {"defer_embedding_wgrad_compute": True},
    "mtp_use_repeated_layer": {"mtp_num_layers": 2},
    "attention_softmax_in_fp32": {"transformer_impl": "local"},
    "memory_efficient_layer_norm": {"transformer_impl": "local"},
    "masked_softmax_fusion": {"transformer_impl": "local"},
    "num_layers_at_start_in_bf16": {"first_last_layers_bf16": True},
    "num_layers_at_end_in_bf16": {"first_last_layers_bf16": True},
    "groupsize": {"quantizer": "Int8DynActInt4WeightQATQuantizer"},
    "stage3_max_reuse_distance": {"stage3_max_live_parameters": 1000},
}
"""Options without which another one is a detail of nothing."""
SAMPLES: dict[str, tuple[object, ...]] = {
    "lora_dropout": (0.0,),
    "groupsize": (32,),
    "pipeline_parallel_first_stage_less_layers": (0, 2),  # 1 is the default, and the others' ranks may need more with 2
}
"""Values of options whose type does not say what they may be."""


def _values(framework: Framework, option: str) -> tuple[object, ...]:
    """Values that the option may have."""
    if option in SAMPLES:
        return SAMPLES[option]
    if option in framework.choices:
        return framework.choices[option]
    kinds = framework.options[option]
    return (True, False) if bool in kinds else (1, 2) if int in kinds else (0.5,)


def _seen(framework: str, layout: tuple[str, str, str], options: dict[str, object]) -> object:
    """Everything that a plan with these options leads to."""
    model, parallelism, training = layout
    model = TORCHTITANS.get(model, model) if framework == "torchtitan" else model
    step = f"framework: {framework}, {training}".rstrip(", ")
    source = document(parallelism, step, model=model, gpu="b200", defaults=STEP)
    source = with_changes(source, {"training.options": options})
    plan, found = read_plan(source)
    if plan is None:
        return [f.message for f in found]
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    context = make_context(plan, source, resolved, fail_above=1.0, warn_above=1.0)
    said = [f.message for f in check_layout(context)[0]]
    try:
        return said, estimate(resolved.job, resolved.gpu, resolved.overhead), step_time(resolved.job, resolved.gpu)
    except MemcheckError as error:
        return said, str(error)


def _silent(framework: Framework) -> Iterator[str]:
    for option in framework.options:
        if option in framework.harmless or option in framework.unmodelled:
            continue
        beside = dict(BESIDE.get(option, {}))
        if "quantizer" in beside:
            beside["quantizer"] = framework.choices["quantizer"][0]
        layouts = OWN.get(option, LAYOUTS)
        tries = itertools.product(layouts, _values(framework, option))
        known = {layout: _seen(framework.name, layout, beside) for layout in layouts}
        if all(_seen(framework.name, layout, {**beside, option: value}) == known[layout] for layout, value in tries):
            yield option


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_option_counts_somewhere(name: str) -> None:
    """Some value of it moves the estimate or the time of some plan, or is reported."""
    assert list(_silent(FRAMEWORKS[name])) == []


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_lists_name_options(name: str) -> None:
    """What is listed as harmless or unmodelled is an option of the framework, and not both."""
    framework = FRAMEWORKS[name]
    assert set(framework.harmless) | set(framework.unmodelled) <= set(framework.options)
    assert not set(framework.harmless) & set(framework.unmodelled)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_has_no_model_is_refused(name: str) -> None:
    """An unmodelled option has no figure, unless it says what is estimated anyway."""
    for option, (priced, does) in FRAMEWORKS[name].unmodelled.items():
        other = not priced if isinstance(priced, bool) else "other"
        job = _job(name, option, other)
        with pytest.raises(UnsupportedError, match=does[:20]):
            estimate(job[0], job[1])
        if priced is not None:
            job = _job(name, option, priced)
            assert estimate(job[0], job[1]).allocated_bytes


def _job(framework: str, option: str, value: object) -> tuple[TrainingJob, Gpu]:
    plan, _ = read_plan(document(training=f"framework: {framework}", model="llama-3.2-1b"))
    assert plan is not None
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    assert isinstance(resolved.job, TrainingJob)
    return resolved.job._replace(options=((option, value),)), resolved.gpu
