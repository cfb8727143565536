"""DeepSpeed's engine traced (``data/deepspeed.json``, by :mod:`benchmarks.deepspeed_trace`) as plans."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, load

GROUP = "DeepSpeed engine"
PRECISIONS = {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp32": "fp32"}
INSTANTS = ("forward", "backward", "optimizer")


def records() -> list[dict[str, Any]]:
    """What was traced: one record a case."""
    found: list[dict[str, Any]] = load("deepspeed.json")["cases"]
    return found


def compared() -> list[dict[str, Any]]:
    """The same of TRL's own losses around the engine, with what they compare with."""
    found: list[dict[str, Any]] = load("deepspeed.json")["objectives"]
    return found


def offloaded() -> list[dict[str, Any]]:
    """The same of engines that offload, whose bytes are those of the GPU and of the host together."""
    found: list[dict[str, Any]] = load("deepspeed.json")["offloaded"]
    return found


def cases() -> list[Case]:
    """Each with the highest of its instants."""
    source = load("deepspeed.json")["source"]
    found = []
    for record in (*records(), *compared()):
        instants = record["instants_bytes"]
        phase = max(INSTANTS, key=lambda name: instants[name])
        found.append(
            Case(
                id=record["id"],
                group=GROUP,
                plan=plan(record),
                truth_bytes=instants[phase],
                metric="allocated",
                source=source,
                phase=None if phase == "forward" else phase,  # which holds the loss, too
                parameters=record["parameters"],
                family=dims(record)["model_type"],
                small=True,
            )
        )
    return found


def dims(record: dict[str, Any]) -> dict[str, Any]:
    """The model of a record: the common one unless it has its own."""
    found: dict[str, Any] = record.get("model") or load("deepspeed.json")["model"]
    return found


def plan(record: dict[str, Any]) -> dict[str, Any]:
    """The plan that says what was run."""
    config = record["config"]
    zero = dict(config["zero_optimization"])
    stage = zero.pop("stage")
    optimizer, parameters = (zero.pop(f"offload_{what}", {"device": "none"}) for what in ("optimizer", "param"))
    if "pin_memory" in optimizer:
        zero["pin_memory"] = optimizer["pin_memory"]
    options = {**zero, **config.get("data_types", {})}
    if "communication_data_type" in config:
        options["communication_data_type"] = config["communication_data_type"]
    return {
        "memcheck": 1,
        "name": record["id"],
        "model": {"architecture": dims(record)},
        "hardware": {"gpu": {"name": "any", "memory_gib": 1000}, "gpus_per_node": record["world"], "nodes": 1},
        "parallelism": {"zero_stage": stage, **({"context": record["context"]} if "context" in record else {})},
        "training": {
            "framework": "deepspeed",
            "torch_version": "2.13",
            "micro_batch_size": record["batch"],
            "sequence_length": record["sequence"],
            "sequences": "packed",
            "gradient_accumulation_steps": config.get("gradient_accumulation_steps", 1),
            "precision": PRECISIONS[record["dtype"]],
            "optimizer": {"name": "adamw", "implementation": "fused", "offload": optimizer["device"]},
            "offload": {"parameters": parameters["device"]},
            "activation_checkpointing": {"mode": record["recompute"], "reentrant": False}
            if record["recompute"] == "full"
            else "none",
            "attention": "sdpa",
            **({"method": "lora", "lora": record["lora"]} if "lora" in record else {}),
            **{key: record[key] for key in ("objective", "trainer", "reference") if key in record},
            "clip_grad_norm": config.get("gradient_clipping", 1.0) > 0,
            "options": options,
        },
    }
