"""Traced steps of other objectives to plans: losses, references, heads and evaluation.

Those of ``data/objectives.json`` were chosen, and count in the tables; those of ``data/objectives_drawn.json`` were
drawn at random, and are held to their traces by tests alone.
"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, load
from benchmarks.traced import MIB, OPTIMIZERS, TORCH, architecture

GROUP = "objectives, traced"
RECIPES = {"bf16": "bf16-pure", "amp": "bf16-mixed", "fp32": "fp32"}
OBJECTIVES = ("dpo", "ipo", "orpo", "kto", "simpo", "cpo", "reward", "gkd", "distillation")
HEADS = {"seq_cls": "classification", "token_cls": "token-classification"}
REFERENCES = {"model": "resident", "adapter_off": "adapter-off", None: "none"}


def records() -> list[dict[str, Any]]:
    """Every record that was chosen."""
    found: list[dict[str, Any]] = load("objectives.json")["cases"]
    return found


def drawn_records() -> list[dict[str, Any]]:
    """Every record that was drawn."""
    found: list[dict[str, Any]] = load("objectives_drawn.json")["cases"]
    return found


def cases() -> list[Case]:
    """Every record that was chosen, with its plan."""
    return [
        Case(
            id=record["id"],
            group=GROUP,
            plan=plan(record),
            truth_bytes=int(record["peak_mib"] * MIB),
            metric="allocated",
            phase=record["peak_phase"],
            parameters=record["params"],
            source=f"traces of torch {TORCH}, transformers 5.23, {_trainer(record)}",
        )
        for record in records()
    ]


def plan(record: dict[str, Any]) -> dict[str, Any]:
    """The plan of one record."""
    loops = ("trl", "trainer", "trainer_autocast", "evaluation")
    trained = any(record.get(key) for key in loops)
    training: dict[str, Any] = {
        "framework": "huggingface" if trained else "pytorch",
        "torch_version": TORCH,
        "micro_batch_size": record["batch"],
        "sequence_length": record["seq"],
        "gradient_accumulation_steps": record.get("grad_accum", 1),
        "precision": _precision(record),
        "optimizer": {
            "name": OPTIMIZERS[record["optimizer"]],
            "implementation": {"single": "for-loop"}.get(record["opt_impl"], record["opt_impl"]),
        },
        "attention": record["attn"],
        "activation_checkpointing": record.get("recompute", "none"),
        "clip_grad_norm": bool(record.get("clip_grad")),
        "initialization": "device",
        "checkpoint": "none",
    }
    if record.get("optimizer_in_backward"):
        training["optimizer"]["in_backward"] = True
    training["sequences"] = "padded" if record.get("padded") else "packed"
    _loss(record, training)
    if record.get("teacher_dims"):
        training["teacher"] = {"model": {"architecture": architecture(record["teacher_dims"])}}
    if record.get("lora"):
        _lora(record["lora"], training)
    _head(record, training)
    _evaluation(record, training)
    world = record.get("parallel", {}).get("world", 1)
    if world > 1 and trained:
        training.setdefault("options", {})["accelerate_version"] = "1.13"  # wrapped as Accelerate did up to then
    return {
        "memcheck": 1,
        "name": record["id"],
        "model": {"architecture": architecture(record["dims"])},
        "hardware": {"gpu": {"name": "any", "memory_gib": 1000}, "gpus_per_node": world},
        "parallelism": {"zero_stage": 3, "gradient_sync": "every"} if world > 1 else {},
        "training": training,
    }


def _trainer(record: dict[str, Any]) -> str:
    return str(record.get("trainer") or f"TRL {record.get('trl', '-')}")


def _precision(record: dict[str, Any]) -> dict[str, str]:
    found = {"recipe": RECIPES[record["precision"]]}
    if record.get("trainer_autocast") and record["precision"] == "bf16":
        found = {"recipe": "bf16-mixed", "params": "bf16"}  # TrainingArguments(bf16=True) around bf16 parameters
    if record.get("parallel"):
        found["reduce"] = record["parallel"].get("reduce_dtype") or "bf16"
    return found


def _loss(record: dict[str, Any], training: dict[str, Any]) -> None:
    """Whose code computes what of the logits."""
    if record.get("trl"):
        training["trainer"] = {"name": "trl", "version": record["trl"]}
    elif record.get("trainer"):
        training["trainer"] = record["trainer"]
    elif training["framework"] == "pytorch" and record.get("head", "lm") == "lm":
        training["loss"] = {"kind": "standard", "keep_logits": False}  # the traced loop asked for the loss alone
    if record["objective"] in OBJECTIVES:
        name = "distill" if record["objective"] == "distillation" else record["objective"]
        more = record.get("objective_args", {})
        training["objective"] = {"name": name, "prompt_length": record["prompt_len"], **more}
        training["reference"] = REFERENCES.get(record.get("reference"), record.get("reference"))
        if record.get("reference_fsdp") == "per_layer":
            training["options"] = {"reference_fsdp": "per_layer"}


def _lora(found: dict[str, Any], training: dict[str, Any]) -> None:
    """Adapters, which are fp32 unless the record says otherwise."""
    training["method"] = "lora"
    training["lora"] = {
        "rank": found["r"],
        "target_modules": found["target"],
        "dtype": "fp32" if found.get("adapter_fp32", True) else "bf16",
        "dropout": found.get("dropout", 0.0),
        "dora": found.get("use_dora", False),
    }
    for key in ("modules_to_save", "target_parameters"):
        if found.get(key):
            training["lora"][key] = found[key]


def _head(record: dict[str, Any], training: dict[str, Any]) -> None:
    """What the model ends in."""
    if record["objective"] == "reward":
        training["head"] = "reward"
    elif record["objective"] == "embedding":
        training["head"] = "embedding"
    elif record.get("head") in HEADS:
        training["head"] = {"kind": HEADS[record["head"]], "labels": record["num_labels"]}


def _evaluation(record: dict[str, Any], training: dict[str, Any]) -> None:
    """The pass behind the step."""
    found = record.get("evaluation")
    if found:
        training["evaluation"] = {
            "micro_batch_size": found["batch"],
            "steps": found["steps"],
            "logits": "dropped" if found["prediction_loss_only"] else "kept",
        }
