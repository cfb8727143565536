"""Draws random plans: models nobody chose, odd sizes, and every layout, recipe, loss and optimizer that can be traced.

A plan is a function of its seed and number alone, so that a run can be repeated and one plan of it traced again.
"""

from __future__ import annotations

from random import Random
from typing import Any

MODELS = {
    "bloom-560m": 3, "bloom-7b1": 2, "codellama-7b": 2, "command-r": 2, "command-r7b": 4, "dbrx": 1,
    "deepseek-v2-lite": 2, "deepseek-v3": 4, "falcon-7b": 3, "falcon-40b": 2, "gemma-2b": 3, "gemma-2-2b": 4,
    "gemma-2-9b": 2, "gemma-3-1b": 6, "gemma-3-270m": 6, "gemma-3-12b": 3, "glm-4-9b": 3, "glm-4-32b": 2,
    "glm-4.5-air": 2, "gpt2": 4, "gpt2-large": 5, "gpt-j-6b": 3, "gpt-neox-20b": 2, "gpt-oss-20b": 2,
    "granite-3.1-2b": 3, "granite-3.1-3b-a800m": 3, "internlm3-8b": 3, "llama-2-13b": 2, "llama-3.2-3b": 3,
    "llama-4-scout": 2, "minimax-m2": 2, "mistral-7b-v0.1": 3, "mistral-nemo-12b": 2, "mixtral-8x7b": 2,
    "minitron-4b": 3, "moonlight-16b-a3b": 2, "mpt-7b": 3, "olmo-1b": 3, "olmo-2-7b": 3, "olmo-3-7b": 4,
    "olmoe-1b-7b": 2, "opt-125m": 4, "opt-350m": 4, "opt-2.7b": 3, "phi-1.5": 3, "phi-3-mini": 3, "phi-3.5-moe": 2,
    "phi-4": 2, "pythia-70m": 4, "pythia-1b": 3, "qwen1.5-moe-a2.7b": 2, "qwen2-0.5b": 4, "qwen2.5-3b": 3,
    "qwen2.5-14b": 2, "qwen3-0.6b": 4, "qwen3-14b": 2, "qwen3-30b-a3b": 2, "smollm-135m": 5, "smollm3-3b": 4,
    "stablelm-2-1.6b": 3, "stablelm-3b-4e1t": 3, "starcoder2-3b": 3, "starcoder2-15b": 2, "tinyllama-1.1b": 4,
    "yi-6b": 3,
}  # fmt: skip
"""Models of every family of the catalog, and with how many layers they are traced."""

TOWERED = ("gemma-3-12b", "llama-4-scout")
"""Models of which only the language part is drawn."""
LAYER_KEYS = {
    "gpt2": "n_layer", "gpt2-large": "n_layer", "gpt-j-6b": "n_layer", "dbrx": "n_layers", "mpt-7b": "n_layers",
}  # fmt: skip
"""Models whose configuration counts its layers under another name."""
ROUTED = (
    "dbrx", "deepseek-v2-lite", "deepseek-v3", "glm-4.5-air", "gpt-oss-20b", "granite-3.1-3b-a800m", "llama-4-scout",
    "minimax-m2", "mixtral-8x7b", "moonlight-16b-a3b", "olmoe-1b-7b", "phi-3.5-moe", "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
)  # fmt: skip
"""Mixtures of experts: torch's grouped product takes bf16 alone."""
CUT = (
    "llama-3.2-3b", "qwen2-0.5b", "qwen2.5-3b", "qwen2.5-14b", "mistral-7b-v0.1", "tinyllama-1.1b", "yi-6b",
    "granite-3.1-2b", "llama-2-13b", "smollm-135m", "qwen3-14b", "codellama-7b", "mistral-nemo-12b",
)  # fmt: skip
"""Those that tensor and pipeline parallelism are traced for: shaped like Llama."""

PLAIN = ("llama-3.2-3b", "qwen2-0.5b", "qwen2.5-3b", "mistral-7b-v0.1", "tinyllama-1.1b", "yi-6b", "granite-3.1-2b")
"""Those whose heads and widths may be anything."""
ODD: tuple[dict[str, Any], ...] = (
    {"num_key_value_heads": 1},
    {"head_dim": 96},
    {"head_dim": 64, "num_key_value_heads": 2},
    {"hidden_size": 1152, "num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 80},
    {"intermediate_size": 5000},
    {"hidden_size": 768, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 128},
)


def draw(seed: int, index: int) -> dict[str, Any]:
    """Plan ``index`` of ``seed``."""
    chance = Random(f"{seed}.{index}")  # noqa: S311 - nothing is secret
    layout = chance.choice(LAYOUTS)
    name = chance.choice(sorted(CUT if layout in (_tensor, _pipeline) else MODELS))
    training = draw_training(chance)
    if name in ROUTED:
        training["precision"] = "bf16-pure"
    ranks, parallelism = layout(chance, training)
    overrides = _overrides(chance, name)
    if "pipeline" in parallelism:
        overrides["num_hidden_layers"] = max(4, MODELS[name])
    per_node = min(ranks, 8)
    return {
        "memcheck": 1,
        "name": f"{seed}.{index}",
        "model": {"name": name, **({"part": "language"} if name in TOWERED else {}), "overrides": overrides},
        "hardware": {
            "gpu": {"name": "any", "memory_gib": 10000},
            "gpus_per_node": per_node,
            "nodes": ranks // per_node,
        },
        "parallelism": parallelism,
        "training": training,
    }


def draw_layout(chance: Random, training: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Ranks and parallelism that every family can have: one GPU, DDP or FSDP2."""
    return chance.choice((_single, _single, _single, _ddp, _fsdp))(chance, training)


def _overrides(chance: Random, name: str) -> dict[str, Any]:
    overrides: dict[str, Any] = {LAYER_KEYS.get(name, "num_hidden_layers"): MODELS[name]}
    if name in PLAIN and chance.random() < 0.6:
        overrides.update(chance.choice(ODD))
    if chance.random() < 0.3:
        overrides["vocab_size"] = chance.choice([50257, 32003, 100001, 151669])
    return overrides


def draw_training(chance: Random) -> dict[str, Any]:
    """How some model is trained: lengths, recipe, optimizer, loss, recompute, and what is adapted or frozen."""
    pick = chance.choice
    training: dict[str, Any] = {
        "framework": pick(["pytorch", "pytorch", "huggingface"]),
        "torch_version": "2.13",
        "micro_batch_size": pick([1, 1, 2, 3, 4, 5, 7]),
        "sequence_length": pick([512, 1000, 1024, 1536, 2048, 2050, 4096]),
        "gradient_accumulation_steps": pick([1, 1, 2, 3, 5]),
        "precision": pick(["bf16-mixed", "bf16-mixed", "bf16-pure", "bf16-pure", "fp32", "fp16-mixed"]),
        "optimizer": _optimizer(chance),
        "activation_checkpointing": pick(["none", "none", "full", "full", {"mode": "full", "reentrant": True}]),
        "attention": pick(["sdpa", "sdpa", "eager"]),
        "loss": _loss(chance),
    }
    if chance.random() < 0.3:
        rank, dtype = pick([8, 64, 128]), pick(["fp32", "bf16"])
        targets = pick(["all-linear", "all-linear", ["q_proj", "v_proj"]])
        training["method"] = "lora"
        training["lora"] = {"rank": rank, "dtype": dtype, "target_modules": targets}
    elif chance.random() < 0.15:
        training["freeze"] = pick([["embed"], ["embed", "layers:0-1"], ["layers:0-2"], ["head", "norm"]])
    if chance.random() < 0.3:
        training["clip_grad_norm"] = True
    return training


def _optimizer(chance: Random) -> dict[str, Any]:
    name = chance.choice(["adamw", "adamw", "adamw", "adam", "sgd", "sgd-momentum", "adafactor", "muon"])
    if name in ("adamw", "adam"):
        return {"name": name, "implementation": chance.choice(["foreach", "fused", "for-loop"])}
    return {"name": name}


def _loss(chance: Random) -> Any:
    return chance.choice(
        [
            "standard",
            "standard",
            {"kind": "standard", "keep_logits": True},
            {"kind": "standard", "keep_logits": False},
            {"kind": "standard", "upcast": False},
            {"kind": "chunked", "chunks": chance.choice([4, 7])},
            "fused-linear",
        ]
    )


def _single(chance: Random, training: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 1, {}


def _ddp(chance: Random, training: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    parallelism: dict[str, Any] = {"gradient_as_bucket_view": chance.random() < 0.5}
    if chance.random() < 0.3:
        parallelism["zero_stage"] = 1
    if chance.random() < 0.3:
        parallelism["gradient_sync"] = "last"
    return chance.choice([2, 4, 8]), parallelism


def _fsdp(chance: Random, training: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    ranks = chance.choice([2, 3, 8, 16, 64])
    parallelism: dict[str, Any] = {"zero_stage": 3}
    if chance.random() < 0.3:
        parallelism["reshard_after_forward"] = False
    if chance.random() < 0.3:
        parallelism["gradient_sync"] = "last"
    if chance.random() < 0.2 and ranks > 3:
        parallelism["shard_group"] = ranks // 2
    if chance.random() < 0.3 and training["precision"] == "bf16-mixed":
        training["precision"] = {"recipe": "bf16-mixed", "reduce": "bf16"}
    return ranks, parallelism


def _whole(training: dict[str, Any], framework: str = "pytorch") -> None:
    """What a split model is not run with."""
    training["framework"] = framework
    for key in ("method", "lora"):
        training.pop(key, None)
    loss = training["loss"]
    if loss == "fused-linear" or (isinstance(loss, dict) and loss["kind"] == "chunked"):
        training["loss"] = "standard"


def _tensor(chance: Random, training: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    _whole(training)
    ways = chance.choice([2, 4])
    parallelism: dict[str, Any] = {"tensor": ways, "sequence": chance.random() < 0.5}
    if chance.random() < 0.3:
        training["loss"] = "vocab-parallel"
    if chance.random() < 0.4:
        parallelism["zero_stage"] = 3
        return ways * chance.choice([2, 4]), parallelism
    return ways, parallelism


def _pipeline(chance: Random, training: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    _whole(training)
    stages = chance.choice([2, 2, 4])
    training["gradient_accumulation_steps"] = chance.choice([stages, 5, 8])
    training["micro_batch_size"] = chance.choice([1, 2])
    parallelism: dict[str, Any] = {"pipeline": stages, "pipeline_schedule": chance.choice(["1f1b", "gpipe"])}
    if chance.random() < 0.4:
        parallelism["zero_stage"] = 3
        return stages * chance.choice([2, 4]), parallelism
    return stages, parallelism


LAYOUTS = (_single, _single, _fsdp, _fsdp, _fsdp, _ddp, _ddp, _tensor, _pipeline)
