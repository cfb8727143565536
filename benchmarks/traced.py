"""Traced facts (``data/traced.json``) to plans: which key of a plan says what a traced step did."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, Unpriced, load

RECIPES = {"bf16": "bf16-pure", "amp": "bf16-mixed", "fp32": "fp32", "fsdp-mixed": "bf16-mixed"}
OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd-momentum", "sgd_plain": "sgd", "adafactor": "adafactor"}
CONFIG_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
}
TITAN_FAMILIES = {"llama3": "llama"}
UNPRICED_LOSSES = {
    "hf_legacy_shift": "the loss of transformers before 4.45, which no plan can name",
    "none": "a step without a language-model head, which no plan can name",
}
TORCH = "2.13"
"""Of every record (its ``versions``)."""
MIB = 2**20


def cases() -> list[Case | Unpriced]:
    """Every traced record, as a plan or with the reason why it has none."""
    return [_case(record) for record in load("traced.json")["cases"]]


def _case(record: dict[str, Any]) -> Case | Unpriced:
    group = record["group"]
    reason = UNPRICED_LOSSES.get(record.get("loss", ""))
    if record.get("pp", {}).get("return_outputs"):
        reason = "return_outputs=True of torch's pipelining keeps every micro-batch's logits, which no plan can name"
    if reason:
        return Unpriced(record["id"], group, reason)
    return Case(
        id=record["id"],
        group=group,
        plan=plan(record),
        truth_bytes=int(record["peak_mib"] * MIB),
        metric="allocated",
        phase=record["peak_phase"],
        pipeline_rank=record.get("pp", {}).get("stage"),
        parameters=record["params"],
        source=f"traces of torch {TORCH}, transformers 5.23, peft 0.21, torchtitan b5bcd76c6",
    )


def plan(record: dict[str, Any]) -> dict[str, Any]:
    """The plan of one record. Sections are filled by the kind of step that was traced."""
    build = {"hf": _hf, "titan": _titan, "pp": _pipeline}[record["kind"]]
    training: dict[str, Any] = {
        "framework": "pytorch",
        "torch_version": TORCH,
        "micro_batch_size": record["batch"],
        "sequence_length": record["seq"],
        "gradient_accumulation_steps": record.get("grad_accum", 1),
        "precision": RECIPES[record["precision"]],
        "clip_grad_norm": record.get("clip_grad", False),
    }
    implementation = {"single": "for-loop"}.get(record["opt_impl"], record["opt_impl"])
    training["optimizer"] = {"name": OPTIMIZERS[record["optimizer"]], "implementation": implementation}
    parallelism: dict[str, Any] = {}
    world = build(record, training, parallelism)
    per_node = min(world, 8)
    return {
        "memcheck": 1,
        "name": record["id"],
        "model": {"architecture": architecture(record["dims"])},
        "hardware": {
            "gpu": {"name": "any", "memory_gib": 1000},
            "gpus_per_node": per_node,
            "nodes": world // per_node,
        },
        "parallelism": parallelism,
        "training": training,
    }


def architecture(dims: dict[str, Any]) -> dict[str, Any]:
    """Dimensions under the key names of a Hugging Face configuration."""
    family = dims["family"].removeprefix("titan-")
    found = {"model_type": TITAN_FAMILIES.get(family, family)}
    for key, value in dims.items():
        if key != "family":
            found[CONFIG_KEYS.get(key, key)] = value
    if found["model_type"] == "mixtral" and "num_experts" in found:
        found["num_local_experts"] = found.pop("num_experts")
    if found["model_type"].startswith("deepseek"):
        _deepseek(found)
    if found["model_type"] == "qwen3" and found.get("num_experts"):
        found["model_type"] = "qwen3_moe"
        found["intermediate_size"] = found["intermediate_size"] or found["moe_intermediate_size"]
        found.pop("n_dense_layers", None)
    return found


def _deepseek(found: dict[str, Any]) -> None:
    found.pop("head_dim", None)
    found.setdefault("n_routed_experts", found.pop("num_experts", None))
    found.setdefault("first_k_dense_replace", found.pop("n_dense_layers", None))
    found["q_lora_rank"] = found.get("q_lora_rank") or None
    if "shared_ffn" in found:
        found["n_shared_experts"] = found.pop("shared_ffn") // found["moe_intermediate_size"]
    for key in ("num_experts", "n_dense_layers"):
        found.pop(key, None)


def _recipe(record: dict[str, Any], training: dict[str, Any]) -> None:
    """Keys that transformers models share, whoever wraps them."""
    training["attention"] = record["attn"]
    training["activation_checkpointing"] = (
        {"mode": "full", "reentrant": True} if record["recompute"] == "full_reentrant" else record["recompute"]
    )
    training["loss"] = _loss(record["loss"])
    if "lora" in record:
        training["method"] = "lora"
        dtype = "fp32" if record["lora"]["adapter_fp32"] else "bf16"
        training["lora"] = {"rank": record["lora"]["r"], "target_modules": "all-linear", "dtype": dtype}
    if "freeze" in record:
        training["freeze"] = record["freeze"]


def _loss(kind: str) -> dict[str, Any]:
    if kind == "flce":
        return {"kind": "fused-linear"}
    if kind.startswith("chunked"):
        return {"kind": "chunked", "chunks": int(kind.removeprefix("chunked"))}
    # the traced loops keep the model's output only where they call the model for its loss
    return {"kind": "standard", "upcast": kind != "native", "keep_logits": kind == "hf"}


def _hf(record: dict[str, Any], training: dict[str, Any], parallelism: dict[str, Any]) -> int:
    _recipe(record, training)
    wrapped = record.get("parallel")
    if not wrapped:
        return 1
    mode, mesh = wrapped["mode"], wrapped.get("mesh", {})
    world = 1
    if "fsdp2" in mode:
        shard = mesh.get("shard") or mesh.get("dp") or wrapped["world"]
        replicas = mesh.get("replicate", 1)
        world = shard * replicas
        parallelism["zero_stage"] = 3
        if replicas > 1:
            parallelism["shard_group"] = shard
        if wrapped.get("reshard_after_forward") is False:
            parallelism["reshard_after_forward"] = False
        if wrapped.get("no_sync"):
            parallelism["gradient_sync"] = "last"
        mixed = wrapped.get("param_dtype") == "bf16" and record["precision"] == "fp32"
        reduce = wrapped.get("reduce_dtype") or ("fp32" if mixed else "bf16")
        training["precision"] = {"recipe": "bf16-mixed" if mixed else training["precision"], "reduce": reduce}
    if mode == "ddp":
        world = wrapped["world"]
        parallelism["gradient_as_bucket_view"] = wrapped["gradient_as_bucket_view"]
        if wrapped["zero1"]:
            parallelism["zero_stage"] = 1
    if "tp" in mode:
        world *= mesh["tp"]
        parallelism["tensor"] = mesh["tp"]
        parallelism["sequence"] = wrapped["sequence_parallel"]
        if wrapped["loss_parallel"]:
            training["loss"] = {"kind": "vocab-parallel", "keep_logits": record["loss"] == "hf"}
    return world


def _titan(record: dict[str, Any], training: dict[str, Any], parallelism: dict[str, Any]) -> int:
    t = record["titan"]
    training["framework"] = "torchtitan"
    training["activation_checkpointing"] = t["ac"]
    training["loss"] = {"kind": "standard"} if t["loss"] == "ce" else _loss(t["loss"])
    shards = t["dp_shard"] * t["cp"]
    parallelism.update(zero_stage=3, tensor=t["tp"], context=t["cp"], expert=t["ep"])
    if t["tp"] > 1:
        parallelism["sequence"] = t["sequence_parallel"]
    if t["dp_replicate"] > 1:
        parallelism["shard_group"] = shards
    return int(shards * t["dp_replicate"] * t["tp"])


def _pipeline(record: dict[str, Any], training: dict[str, Any], parallelism: dict[str, Any]) -> int:
    _recipe(record, training)
    # a stage keeps its outputs until their backward, the last one its logits (torch/distributed/pipelining/stage.py)
    training["loss"] = {"kind": "standard", "keep_logits": True}
    stages = record["pp"]
    parallelism["pipeline"] = stages["stages"]
    parallelism["pipeline_schedule"] = {"1F1B": "1f1b", "GPipe": "gpipe"}[stages["schedule"]]
    training["gradient_accumulation_steps"] = stages["microbatches"]
    sharded = stages.get("fsdp")
    if not sharded:
        return int(stages["stages"])
    parallelism["zero_stage"] = 3
    parallelism["reshard_after_forward"] = sharded["reshard_after_forward"]
    training["precision"] = {"recipe": "bf16-mixed", "reduce": sharded["reduce_dtype"]}
    return int(stages["stages"] * sharded["world"])
