"""Small models that transformers writes itself, one per family that is added: what ``benchmarks.families --add`` keeps.

A family's record is the ``config.json`` that transformers writes for a small model of it, and the parameters that the
model has on the meta device. Plans of it are traced as those of ``benchmarks.small`` are.
"""

from __future__ import annotations

import json
import os
from typing import Any

from benchmarks.cases import HERE, kept
from benchmarks.small import ADAPTED, HALF_ADAPTED, TRAINER, small_plan
from memcheck.families.registry import read_architecture
from memcheck.models.types import Attention, Mixer

FILE = os.path.join(HERE, "data", "family_models.json")
VOCABULARY, EXPERTS, WINDOW, LAYERS, MOST = 2000, 8, 256, 3, 8
"""What a small model has, and how many layers it may have until each kind is there."""
LAYER_KEYS = ("encoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
STARTS = ("decoder_start_token_id", "forced_eos_token_id")
CHOICE_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
STATED: dict[str, dict[str, Any]] = {
    "axk1": {"n_group": 1, "topk_group": 1},
    "albert": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "num_hidden_groups": 2,
        "num_hidden_layers": 4,
    },
    "bailing_hybrid": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "n_group": 1,
        "topk_group": 1,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 0,
    },
    "bert": {"max_position_embeddings": 2048},
    "camembert": {"max_position_embeddings": 2048},
    "deepseek_v32": {"n_group": 1, "topk_group": 1},
    "blenderbot": {
        "d_model": 512,
        "decoder_attention_heads": 8,
        "decoder_ffn_dim": 2048,
        "encoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "encoder_layers": 3,
        "max_position_embeddings": 2048,
    },
    "blenderbot-small": {"max_position_embeddings": 2048},
    "plbart": {"max_position_embeddings": 2048},
    "data2vec-text": {"max_position_embeddings": 2048},
    "esm": {
        "vocab_size": 33,
        "pad_token_id": 1,
        "mask_token_id": 32,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "hidden_size": 1280,
        "num_attention_heads": 20,
        "intermediate_size": 5120,
    },
    "ernie": {"max_position_embeddings": 2048},
    "deberta": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "max_position_embeddings": 2048,
        "max_relative_positions": 256,
        "type_vocab_size": 0,
    },
    "deberta-v2": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "relative_attention": True,
        "share_att_key": True,
    },
    "deepseek_v4": {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "head_dim": 256,
        "q_lora_rank": 512,
        "o_groups": 4,
        "o_lora_rank": 256,
        "moe_intermediate_size": 512,
        "index_n_heads": 16,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
    },
    "distilbert": {"max_position_embeddings": 2048},
    "electra": {"max_position_embeddings": 2048},
    "dots1": {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [4096] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0],
        "vocab_size_per_layer_input": 2000,
        "sliding_window": 256,
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_hidden_layers": 3,
        "linear_num_heads": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_hidden_layers": 4},
    "lfm2_moe": {
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "num_hidden_layers": 4,
    },
    "minimax_m3_vl_text": {
        "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_hidden_layers": 3,
        "hidden_size": 2048,
        "num_attention_heads": 16,
    },
    "m2m_100": {"decoder_layerdrop": 0.0, "encoder_layerdrop": 0.0},
    "mpnet": {"max_position_embeddings": 2048},
    "ministral": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "moe_topk": 2},
    "roberta-prelayernorm": {"max_position_embeddings": 2048},
    "xlm-roberta-xl": {"max_position_embeddings": 2048},
    "t5gemma": {
        stack: {
            "num_hidden_layers": 2,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "intermediate_size": 2048,
            "vocab_size": VOCABULARY,
            "sliding_window": WINDOW,
        }
        for stack in ("encoder", "decoder")
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "n_mamba_heads": 8,
    },
}
"""Keys without which the class's own defaults build no model."""
SECTIONS = ("encoder", "decoder")
"""Keys of a stack's own configuration."""
TOKENWISE = {
    "bailing_hybrid": 384,
    "falcon_mamba": 40,
    "jamba": 40,
    "kimi_linear": 384,
    "mamba": 40,
}
"""Families whose fallback loops over tokens or chunks, which takes minutes to trace: the length of their sequences."""
FIXED_ROWS = {"whisper": 1500}
"""Rows that an encoder reads of every sample, by its class's default."""
WAYS = (
    ("sdpa", "none", "bf16-pure"),
    ("sdpa", "full", "bf16-pure"),
    ("eager", "none", "bf16-pure"),
    ("sdpa", "none", "bf16-mixed"),
    ("sdpa", "full", "bf16-mixed"),
    ("sdpa", "none", "bf16-lora"),
    ("sdpa", "full", "bf16-lora"),
    ("eager", "full", "bf16-mixed"),
    ("sdpa", "none", "fp32"),
)
"""Attention, recompute and recipe of the plans; mixtures of experts leave the last two out."""

EAGER = (
    ("eager", "none", "bf16-pure"),
    ("eager", "full", "bf16-pure"),
    ("eager", "none", "bf16-mixed"),
    ("eager", "full", "bf16-mixed"),
    ("eager", "none", "bf16-lora"),
    ("eager", "full", "bf16-lora"),
)
WIDENED = ("bert", "distilbert", "electra", "m2m_100", "modernbert", "whisper")
"""Families whose stream, or encoder's output, a LayerNorm makes fp32 under autocast."""
KEPT = ("bailing_hybrid", "ernie4_5_moe")
"""Families with parameters that are loaded in fp32 beside others in bf16: adapters under autocast, too."""
HALVED = ("afmoe", "deepseek_v32", "mt5", "t5", "umt5")
"""Families with parameters that are loaded in fp32 beside others in fp16 alone."""
UNADAPTED = ("deepseek_v4", "falcon_h1", "falcon_mamba", "mamba", "mamba2")
"""Families of which peft refuses adapters of all linear layers."""
MASKED = ("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "plbart")
"""Families whose decoder makes a mask of ones. A GPU reads that it masks nothing, so that its kernel gets none; fake
tensors cannot be read (masking_utils.py, _ignore_causal_mask_sdpa), and their traces are of another kernel."""


def added() -> dict[str, dict[str, Any]]:
    """``config``, ``parameters`` and ``transformers`` (its version), by ``model_type``."""
    found: dict[str, dict[str, Any]] = kept(FILE)
    return found


def added_plans() -> dict[str, dict[str, Any]]:
    """The plans of every family that was added, by name."""
    found = {}
    for kind, record in added().items():
        for attention, recompute, recipe in record["ways"]:
            name = f"{kind} added, {attention}, {recompute}, {recipe}"
            plan = small_plan(name, ("", {}), attention, recompute, recipe)
            if record["kernels"]:  # which have no CPU path that keeps the same tensors
                plan["training"]["kernels"] = record["kernels"]
            rows = record["config"].get("max_source_positions") or FIXED_ROWS.get(kind)
            if rows:
                plan["training"] |= {"sequence_length": rows, "target_length": 200}
            if kind in TOKENWISE:
                plan["training"]["sequence_length"] = TOKENWISE[kind]
            found[name] = {**plan, "model": {"architecture": record["config"]}}
    return found


def record(kind: str) -> dict[str, Any]:
    """A small model of a family as transformers builds it, with its parameters: needs ``verify``."""
    import torch
    import transformers

    from memcheck.verify.build.model import class_of

    config = small_config(kind)
    model = config.pop("model_type")
    with torch.device("meta"):
        built = class_of(model)(transformers.AutoConfig.for_model(model, **config))
    blocks = read_architecture({"model_type": model, **config}).blocks
    mixers = [mixer for block, _ in blocks for mixer in (block.mixer, block.second_mixer)]
    recurrent = any(isinstance(m, Mixer) for m in mixers)
    routed = any(key in config for key in EXPERT_KEYS)
    eager = any(isinstance(b.mixer, Attention) and not b.mixer.kernels.sdpa for b, _ in blocks)
    ways = [
        way
        for way in (EAGER if kind in MASKED or eager else WAYS)
        if not (routed and way in WAYS[-2:])
        and (built.supports_gradient_checkpointing or way[1] == "none")
        and (kind not in UNADAPTED or way[2] != ADAPTED)
    ]
    return {
        "config": {"model_type": model, **config},
        "parameters": sum(p.numel() for p in built.parameters()),
        "transformers": transformers.__version__,
        "kernels": {"ssm": "fallback"} if recurrent else None,
        "ways": ways + [(ways[0][0], recompute, recipe) for recipe in _more(kind) for recompute in ("none", "full")],
    }


def _more(kind: str) -> list[str]:
    """Recipes that some families have beside the others'."""
    found = [TRAINER] if kind in WIDENED + KEPT else []
    found += ["fp16-pure"] if kind in HALVED else []
    return found + ([HALF_ADAPTED] if kind in HALVED and kind.endswith("t5") else [])


def small_config(kind: str) -> dict[str, Any]:
    """The class's own dimensions with few layers, words and experts, as transformers writes them."""
    from transformers import AutoConfig

    stated = STATED.get(kind, {})
    whole = json.loads(AutoConfig.for_model(kind, **stated).to_json_string(use_diff=False))
    few = {key: value for key, value in _few(whole).items() if whole.get(key) != value and key not in stated}
    written: dict[str, Any] = json.loads(AutoConfig.for_model(kind, **stated, **few).to_json_string(use_diff=True))
    # YAML reads 1e-05, as JSON writes it, as a word; infinity is a mapping: the class knows its own epsilons and limits
    return _plain(written)


def _plain(written: dict[str, Any]) -> dict[str, Any]:
    """Without values that YAML reads as something else, in sections either."""
    kept = {key: _plain(value) if key in SECTIONS else value for key, value in written.items()}
    return {key: value for key, value in kept.items() if not any(odd in repr(value) for odd in ("e-", "__float__"))}


def _few(whole: dict[str, Any]) -> dict[str, Any]:
    key = next((k for k in LAYER_KEYS if whole.get(k)), None)
    if key is None:  # two stacks, each in a section of its own
        return {}
    layers, lists = whole[key], {k: v for k, v in whole.items() if isinstance(v, list) and len(v) == whole[key]}
    kinds = list(zip(*lists.values(), strict=True)) or [()] * layers
    enough = (n for n in range(LAYERS, MOST + 1) if set(map(str, kinds[:n])) == set(map(str, kinds)))
    count = min(layers, next(enough, MOST))
    found: dict[str, Any] = {key: count, "vocab_size": VOCABULARY}
    found |= {k: v[:count] for k, v in lists.items()}
    found |= {k: EXPERTS for k in EXPERT_KEYS if k in whole}
    found |= {k: min(whole[k], EXPERTS) for k in CHOICE_KEYS if k in whole}
    if whole.get("sliding_window"):
        found["sliding_window"] = WINDOW
    if "decoder_layers" in whole:
        found["decoder_layers"] = count
    starts = {key: 0 for key in STARTS if whole.get(key) is not None}
    return found | {key: 0 for key in TOKENS if key in whole} | starts


def keep(records: dict[str, dict[str, Any]]) -> None:
    """Write the file: one family a line."""
    lines = [f"{json.dumps(kind)}: {json.dumps(records[kind])}" for kind in sorted(records)]
    with open(FILE, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
