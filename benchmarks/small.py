"""Small models of every family, by hand: wide enough that each tensor of a layer shows, short enough to be traced fast.

``SMALL`` lists a catalog name with the keys that make it small; a plan of one is a function of its row and of how it
is trained.
"""

from __future__ import annotations

from typing import Any

VOCABULARY = {"vocab_size": 2000}


def like_llama(layers: int, **keys: Any) -> dict[str, Any]:
    """Keys of a model shaped like Llama."""
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024}
    return {"num_hidden_layers": layers, **sizes, **VOCABULARY, **keys}


def routed(layers: int, **keys: Any) -> dict[str, Any]:
    """Keys of a mixture of experts."""
    heads = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    return {"num_hidden_layers": layers, **heads, **VOCABULARY, **keys}


def falcon(**keys: Any) -> dict[str, Any]:
    """Keys of a Falcon."""
    return {"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, **VOCABULARY, **keys}


SMALL: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("bloom", "bloom-560m", {"n_layer": 3, "hidden_size": 512, "n_head": 8, **VOCABULARY}),
    ("cohere", "command-r", like_llama(3, num_key_value_heads=4)),
    ("cohere2", "command-r7b", like_llama(4, num_key_value_heads=4, sliding_window=256, head_dim=64)),
    ("deepseek_v2", "deepseek-v2-lite", {"num_hidden_layers": 3, **VOCABULARY}),
    ("falcon multi-query", "falcon-7b", falcon()),
    ("falcon multi-query alibi", "falcon-7b", falcon(alibi=True)),
    ("falcon multi-head alibi", "falcon-7b", falcon(alibi=True, multi_query=False)),
    ("falcon multi-head", "falcon-7b", falcon(multi_query=False)),
    ("falcon grouped", "falcon-40b", falcon(num_kv_heads=2)),
    ("falcon grouped alibi", "falcon-40b", falcon(num_kv_heads=2, alibi=True)),
    ("gemma", "gemma-2b", like_llama(3, num_key_value_heads=1, head_dim=64)),
    ("gemma2", "gemma-2-2b", like_llama(4, num_key_value_heads=4, head_dim=64, sliding_window=256)),
    ("gemma3 270m", "gemma-3-270m", {"num_hidden_layers": 6, **VOCABULARY}),
    ("gemma3 wide window", "gemma-3-270m", {"num_hidden_layers": 6, "sliding_window": 2048, **VOCABULARY}),
    ("gemma3 one head", "gemma-3-1b", like_llama(6, num_key_value_heads=1, head_dim=64, sliding_window=256)),
    ("gemma3 grouped", "gemma-3-12b", like_llama(6, num_key_value_heads=4, head_dim=64, sliding_window=256)),
    ("glm", "glm-4-9b", like_llama(3, num_key_value_heads=2, head_dim=64)),
    ("glm4", "glm-4-32b", like_llama(3, num_key_value_heads=2, head_dim=64)),
    ("glm4_moe", "glm-4.5-air", routed(2, head_dim=64, n_routed_experts=8)),
    ("gpt2", "gpt2", {"n_layer": 3, **VOCABULARY}),
    ("gpt_neox 20b", "gpt-neox-20b", like_llama(3)),
    ("gpt_neox", "pythia-70m", {"num_hidden_layers": 3, **VOCABULARY}),
    ("gpt_oss", "gpt-oss-20b", like_llama(2, num_key_value_heads=2, head_dim=64)),
    ("gptj", "gpt-j-6b", {"n_layer": 3, "n_embd": 512, "n_head": 8, "rotary_dim": 32, **VOCABULARY}),
    ("granite", "granite-3.1-2b", like_llama(3, num_key_value_heads=2)),
    ("granitemoe", "granite-3.1-3b-a800m", like_llama(2, num_key_value_heads=2)),
    ("internlm3", "internlm3-8b", like_llama(3, num_key_value_heads=2, head_dim=64)),
    ("llama multi-head", "llama-2-13b", like_llama(3, num_key_value_heads=8)),
    ("llama grouped", "llama-3.2-3b", like_llama(3, num_key_value_heads=2, head_dim=64)),
    ("llama4", "llama-4-scout", routed(4, num_local_experts=4)),
    ("llama4 chunked", "llama-4-scout", routed(4, num_local_experts=4, attention_chunk_size=256)),
    ("minimax", "minimax-text-01", routed(2, num_local_experts=4)),
    ("minimax_m2", "minimax-m2", routed(2, num_local_experts=8)),
    ("mistral windowed", "mistral-7b-v0.1", like_llama(3, num_key_value_heads=2, sliding_window=256)),
    ("mistral", "mistral-7b", like_llama(3, num_key_value_heads=2)),
    ("mixtral", "mixtral-8x7b", like_llama(2, num_key_value_heads=2)),
    ("mpt", "mpt-7b", {"n_layers": 3, "d_model": 512, "n_heads": 8, **VOCABULARY}),
    ("nemotron", "minitron-4b", like_llama(3, num_key_value_heads=2, head_dim=64)),
    ("olmo", "olmo-1b", like_llama(3, num_key_value_heads=8)),
    ("olmo2", "olmo-2-7b", like_llama(3, num_key_value_heads=8)),
    ("olmo3", "olmo-3-7b", like_llama(4, num_key_value_heads=8, sliding_window=256)),
    ("olmoe", "olmoe-1b-7b", like_llama(2, num_key_value_heads=8)),
    ("opt", "opt-125m", {"num_hidden_layers": 3, **VOCABULARY}),
    ("opt 350m", "opt-350m", {"num_hidden_layers": 3, **VOCABULARY}),
    ("phi", "phi-1.5", like_llama(3, num_key_value_heads=8)),
    ("phi3", "phi-3-mini", like_llama(3, num_key_value_heads=8, sliding_window=256)),
    ("phi3 grouped", "phi-4", like_llama(3, num_key_value_heads=4)),
    ("phimoe", "phi-3.5-moe", like_llama(2, num_key_value_heads=2, input_jitter_noise=0.0)),
    ("qwen2", "qwen2-0.5b", like_llama(3, num_key_value_heads=2)),
    ("qwen2_moe", "qwen1.5-moe-a2.7b", routed(2, num_key_value_heads=8, num_experts=8)),
    ("qwen3", "qwen3-0.6b", like_llama(3, num_key_value_heads=2, head_dim=64)),
    ("qwen3_moe", "qwen3-30b-a3b", routed(2, num_experts=16)),
    ("smollm3", "smollm3-3b", like_llama(4, num_key_value_heads=2)),
    ("stablelm", "stablelm-2-1.6b", like_llama(3, num_key_value_heads=8)),
    ("starcoder2", "starcoder2-3b", like_llama(3, num_key_value_heads=2, sliding_window=256)),
)
"""A label, a catalog name, and what is written over its configuration. Mamba-2 and gated delta nets are left out:
their kernels have no CPU path that keeps the same tensors. So is DBRX, whose loop over experts
depends on values."""
ROUTED = (
    "deepseek_v2", "glm4_moe", "gpt_oss", "granitemoe", "llama4", "llama4 chunked", "minimax", "minimax_m2", "mixtral",
    "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
)  # fmt: skip
"""Mixtures of experts: eager attention is in bf16 alone."""
ATTENTIONS = ("eager", "sdpa")
RECOMPUTES = ("none", "full")
RECIPES = ("bf16-mixed", "bf16-pure")
ADAPTED, HALF_ADAPTED, TRAINER = "bf16-lora", "fp16-lora", "autocast-lora"
"""Ways to train that stand for a recipe: weights in bf16 or fp16 and adapters of all linear layers in fp32, also under
the Trainer's autocast.
"""
MICRO_BATCH, SEQUENCE = 2, 1024


def small_plans() -> dict[str, dict[str, Any]]:
    """Every row with both attentions, with and without recompute, under autocast and without; by name."""
    found = {}
    for label, model, keys in SMALL:
        for attention in ATTENTIONS:
            recipes = ("bf16-pure",) if label in ROUTED and attention == "eager" else RECIPES
            if attention == "sdpa" and label == "gemma2":
                continue  # its scores are capped, which no kernel does
            for recompute in RECOMPUTES:
                for recipe in recipes:
                    name = f"{label}, {attention}, {recompute}, {recipe}"
                    found[name] = small_plan(name, (model, keys), attention, recompute, recipe)
    for label, (model, keys, recipe, changes) in ODD.items():
        for recompute in RECOMPUTES:
            name = f"{label}, sdpa, {recompute}, {recipe}"
            plan = small_plan(name, (model, keys), "sdpa", recompute, recipe)
            ways = changes.get("tensor", 1)
            if ways > 1:
                plan["parallelism"] = {"tensor": ways, "sequence": True}
                plan["hardware"]["gpus_per_node"] = ways
            plan["training"].update({key: value for key, value in changes.items() if key != "tensor"})
            found[name] = plan
    return found


ODD: dict[str, tuple[str, dict[str, Any], str, dict[str, int]]] = {
    "mistral windowed 1001": (
        "mistral-7b-v0.1",
        like_llama(3, num_key_value_heads=2, sliding_window=256),
        "fp32",
        {"sequence_length": 1001},
    ),
    "falcon alibi 1001": (
        "falcon-7b", falcon(alibi=True, multi_query=False), "bf16-pure", {"sequence_length": 1001}
    ),
    "llama grouped fp32": ("llama-3.2-3b", like_llama(3, num_key_value_heads=2, head_dim=64), "fp32", {}),
    "gemma3 one head fp32": (
        "gemma-3-1b", like_llama(6, num_key_value_heads=1, head_dim=64, sliding_window=256), "fp32", {}
    ),
    "glm alone": (
        "glm-4-9b",
        like_llama(3, num_key_value_heads=2, head_dim=64),
        "bf16-mixed",
        {"micro_batch_size": 1, "sequence_length": 768},
    ),
    "llama on two": ("llama-3.2-3b", like_llama(3, num_key_value_heads=2, head_dim=64), "bf16-mixed", {"tensor": 2}),
}  # fmt: skip
"""Masks whose rows are padded to a multiple of 8, grouped heads in fp32, which the math kernel runs, one sequence, and
hooks of tensor parallelism: a label, a model, its recipe, and what is changed of the plan."""


TOWERED = ("gemma-3-12b", "llama-4-scout")
"""Models whose language part alone is traced here."""


def small_plan(
    name: str,
    model: tuple[str, dict[str, Any]],
    attention: str,
    recompute: str,
    recipe: str,
) -> dict[str, Any]:
    """One step of plain SGD on one GPU, whose own peaks leave those of the layers to be seen."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 16, "dtype": "fp32", "target_modules": "all-linear"}}
    ways = {
        ADAPTED: {"precision": "bf16-pure", **lora},
        HALF_ADAPTED: {"precision": "fp16-pure", **lora},
        TRAINER: {"framework": "huggingface", "precision": "bf16-mixed", **lora},
    }
    return {
        "memcheck": 1,
        "name": name,
        "model": {"name": model[0], **({"part": "language"} if model[0] in TOWERED else {}), "overrides": model[1]},
        "hardware": {"gpu": {"name": "any", "memory_gib": 10000}, "gpus_per_node": 1, "nodes": 1},
        "parallelism": {},
        "training": {
            "framework": "pytorch",
            "torch_version": "2.13",
            "micro_batch_size": MICRO_BATCH,
            "sequence_length": SEQUENCE,
            "sequences": "packed",
            "gradient_accumulation_steps": 1,
            "precision": recipe,
            "optimizer": "sgd",
            "activation_checkpointing": recompute,
            "attention": attention,
            "loss": "standard",
            **ways.get(recipe, {}),
        },
    }
