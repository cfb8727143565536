"""Made-up plans of small models under Megatron, traced and predicted: what is off is printed."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from benchmarks.megatron_trace import ranks_of
from benchmarks.score import resolved

LOW, HIGH = -0.5, 2.0
"""Percent of the peak between which a prediction is not worth a look."""
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
SPARSE: dict[str, Any] = {**LLAMA, "num_experts": 8, "moe_intermediate_size": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama.tied": {**LLAMA, "tie_word_embeddings": True, "vocab_size": 4001},
    "llama.mha": {**LLAMA, "num_key_value_heads": 8},
    "qwen2": {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3": {**LLAMA, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 48},
    "mixtral": {
        **LLAMA,
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 384,
    },
    "qwen3_moe": {
        **SPARSE,
        "model_type": "qwen3_moe",
        "num_experts_per_tok": 4,
        "head_dim": 32,
        "norm_topk_prob": True,
    },
    "qwen2_moe": {
        **SPARSE,
        "model_type": "qwen2_moe",
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 256,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "num_key_value_heads": 8,
    },
    "deepseek_v3": {
        **{key: value for key, value in SPARSE.items() if key != "num_experts"},
        "model_type": "deepseek_v3",
        "intermediate_size": 512,
        "num_key_value_heads": 8,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
    },
    "gpt": {
        "model_type": "megatron-gpt",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 2048,
        "max_position_embeddings": 512,
    },
}


def drawn(seed: int, count: int, only: str = "") -> int:
    """Draw, trace and predict; print each plan that Megatron does not run, or that is predicted wrong."""
    for index in range(count):
        random = Random(f"{seed}.{index}")  # noqa: S311  # which plan is no secret
        name = random.choice([name for name in MODELS if only in name])
        plan = plan_of(random, name)
        try:
            off = errors(plan)
        except Exception as error:  # noqa: BLE001  # their code can stop anywhere, and so may ours: both are printed
            print(f"{seed}.{index} {name}: {str(error).strip()[-300:]} {_short(plan)}", flush=True)
            continue
        wrong = any(not LOW < each < HIGH for each in off.values())
        print(f"{seed}.{index} {name}: {off}{' ' + _short(plan) if wrong else ''}", flush=True)
    return 0


def _short(plan: dict[str, Any]) -> str:
    return json.dumps({**plan["parallelism"], **plan["training"]})


def errors(plan: dict[str, Any]) -> dict[str, float]:
    """Of each stage how far its predicted peak is off, in percent."""
    predicted = predicted_ranks(plan)
    found = ranks_of(plan)
    return {
        stage: round(100 * (max(predicted[stage].values()) / max(seen.values()) - 1), 2)
        for stage, seen in found.items()
    }


def predicted_ranks(plan: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What memcheck says of the same instants, with the workspaces that the traces have."""
    from benchmarks.megatron_kernels import WORKSPACE
    from memcheck.frameworks.megatron import ranks, workspaces

    workspaces.TE_WORKSPACE = WORKSPACE
    job: Any = resolved(plan)[0]
    found: dict[str, dict[str, int]] = {}
    for rank in ranks.megatron_ranks(job, job.architecture, workspaces.Device("sm_90", 0)):
        instants = {instant.name: instant.allocated_bytes for instant in rank.instants}
        instants["forward"] = max(instants["forward"], instants.pop("loss", 0))
        found[str(rank.pipeline_rank)] = instants
    return found


def plan_of(random: Random, name: str) -> dict[str, Any]:
    """A plan that Megatron's own checks accept, as far as they are known here."""
    model = MODELS[name]
    sparse = any(word in model for word in ("num_experts", "num_local_experts", "n_routed_experts"))
    layout: dict[str, Any] = {"zero_stage": 1 if random.random() < 0.75 else 0}
    options: dict[str, Any] = {"attention_backend": "fused", "transformer_engine_version": "2.20"}
    _split(random, layout, options, sparse=sparse, rotates=name != "gpt")
    dtype = random.choice(["bf16"] * 6 + ["fp16"] + (["fp32"] if layout.get("context", 1) == 1 else []))
    if dtype == "fp32" or (layout.get("context", 1) == 1 and random.random() < 0.15):
        options["attention_backend"] = "unfused"
    _recompute(random, options, model, sparse=sparse)
    options |= _some(
        random,
        (0.3, "overlap_grad_reduce", True),
        (0.25, "gradient_accumulation_fusion", False),
        (0.15, "apply_rope_fusion", False),
        (0.1, "bias_dropout_fusion", False),
        (0.1, "ddp_pad_buckets_for_high_nccl_busbw", True),
    )
    if options.get("overlap_grad_reduce") and layout["zero_stage"] and random.random() < 0.6:
        options["overlap_param_gather"] = True
    if dtype != "fp16" and random.random() < 0.3:
        options.update(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te")
    if dtype == "bf16":
        _states(random, options, sharded=bool(layout["zero_stage"]))
    if layout.get("virtual_stages", 1) == 1 and name in ("llama", "mixtral", "deepseek_v3") and random.random() < 0.15:
        options["mtp_num_layers"] = random.choice([1, 2])
    group = options.get("microbatch_group_size_per_virtual_pipeline_stage", layout.get("pipeline", 1))
    steps = random.choice([1, 2, 4]) * (group if layout.get("virtual_stages") else 1)
    return {
        "memcheck": 1,
        "name": name,
        "model": {"architecture": model},
        "hardware": {"gpu": {"name": "any", "memory_gib": 1000}, "gpus_per_node": layout.pop("world"), "nodes": 1},
        "parallelism": layout,
        "training": {
            "framework": "megatron",
            "micro_batch_size": random.choice([1, 1, 2, 3]),
            "sequence_length": random.choice([64, 128, 256, 256]),
            "gradient_accumulation_steps": steps,
            "precision": {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp32": "fp32"}[dtype],
            "optimizer": {"name": "adamw"},
            "options": options,
        },
    }


def _split(random: Random, layout: dict[str, Any], options: dict[str, Any], *, sparse: bool, rotates: bool) -> None:
    """Degrees, and how tokens reach experts."""
    if random.random() < 0.45:
        layout.update(tensor=random.choice([2, 2, 4]), sequence=sparse or random.random() < 0.7)
    if random.random() < 0.35:
        layout["pipeline"] = random.choice([2, 4])
    if layout.get("pipeline") == 2 and random.random() < 0.5:
        layout.update(virtual_stages=2, pipeline_schedule="interleaved-1f1b")
        if random.random() < 0.3:
            options["microbatch_group_size_per_virtual_pipeline_stage"] = random.choice([3, 4])
    elif layout.get("pipeline") and random.random() < 0.2:
        options["deallocate_pipeline_outputs"] = False
    if not sparse and rotates and random.random() < 0.2:
        layout["context"] = 2
    if sparse:
        if random.random() < 0.6:
            layout["expert"] = random.choice([2, 4])
            options["moe_token_dispatcher_type"] = random.choice(["alltoall", "alltoall", "allgather"])
        if "tensor" in layout:
            layout["expert_tensor"] = random.choice([1, layout["tensor"]])
        options |= _some(
            random,
            (0.3, "moe_router_dtype", "fp32"),
            (0.3, "moe_permute_fusion", True),
            (0.25, "moe_router_load_balancing_type", "none"),
        )
    dense = math.prod(layout.get(name, 1) for name in ("tensor", "pipeline", "context"))
    routed = math.prod(layout.get(name, 1) for name in ("expert", "expert_tensor", "pipeline"))
    layout["world"] = math.lcm(dense, routed) * random.choice([1, 2, 2, 4])


def _recompute(random: Random, options: dict[str, Any], model: dict[str, Any], *, sparse: bool) -> None:
    """Whole layers, or some of their modules."""
    how = random.choice(["", "", "uniform", "block", "selective", "selective"])
    if how in ("uniform", "block"):
        options.update(recompute_granularity="full", recompute_method=how, recompute_num_layers=random.choice([1, 2]))
    if how != "selective":
        return
    modules = ["core_attn", "layernorm", *(["moe_act", "moe"] if sparse else [])]
    modules += ["mla_up_proj"] if "kv_lora_rank" in model else []
    modules += ["mlp"] if not sparse or model.get("first_k_dense_replace") else []
    modules += ["shared_experts"] if "n_shared_experts" in model or "shared_expert_intermediate_size" in model else []
    chosen = random.sample(modules, random.choice([1, 2, 3][: len(modules)]))
    if "moe" in chosen:
        chosen = [module for module in chosen if module not in ("moe_act", "shared_experts")]
    options.update(recompute_granularity="selective", recompute_modules=chosen)


def _states(random: Random, options: dict[str, Any], *, sharded: bool) -> None:
    """Dtypes of gradients and of the optimizer's states."""
    if not sharded or random.random() < 0.8:
        if random.random() < 0.15:
            options["grad_reduce_in_bf16"] = True
        return
    options["use_precision_aware_optimizer"] = True
    options |= _some(
        random,
        (0.6, "exp_avg_dtype", random.choice(["bf16", "fp16", "fp8"])),
        (0.6, "exp_avg_sq_dtype", random.choice(["bf16", "fp16", "fp8"])),
        (0.4, "main_grads_dtype", "bf16"),
        (0.3, "main_params_dtype", "fp16"),
        (0.3, "store_param_remainders", False),
    )


def _some(random: Random, *rows: tuple[float, str, Any]) -> dict[str, Any]:
    """Options that are set with some chance."""
    return {name: value for chance, name, value in rows if random.random() < chance}
