"""The plan's model as torchtitan's configuration: its own builders, given the plan's sizes."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from memcheck.models.types import Architecture, Attention, LatentAttention, Mlp, Moe
from memcheck.verify.errors import RefusedStepError

MODELS = {
    "llama": "llama3",
    "mistral": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v2": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
}
"""torchtitan's package for a model type."""
TEMPLATES = {"llama3": "8B", "qwen3": "0.6B", "deepseek_v3": "16B"}
"""A flavor of each, whose sizes are replaced."""


def model_spec(architecture: Architecture) -> Any:
    """torchtitan's ``ModelSpec`` with the architecture's sizes.

    Raises:
        RefusedStepError: it has no such model.
    """
    name = MODELS.get(architecture.model_type)
    if name is None:
        raise RefusedStepError(
            f"torchtitan has no {architecture.model_type}", "verify in plain PyTorch: --set training.framework=pytorch"
        )
    package = import_module(f"torchtitan.models.{name}")
    spec = package.model_registry(TEMPLATES[name], attn_backend="varlen")
    model, width, rows = spec.model, architecture.hidden_size, architecture.vocab_size
    model.dim, model.vocab_size = width, rows
    model.tok_embeddings = replace(model.tok_embeddings, num_embeddings=rows, embedding_dim=width)
    model.norm = replace(model.norm, normalized_shape=width)
    model.lm_head = replace(model.lm_head, in_features=width, out_features=rows)
    model.enable_weight_tying = architecture.tie_word_embeddings
    rope = model.layers[0].attention.rope
    model.layers = _layers(package, name, architecture, rope)
    return spec


def _layers(package: Any, name: str, architecture: Architecture, rope: Any) -> list[Any]:
    blocks = architecture.layers()
    first, last = blocks[0], blocks[-1]
    sizes: dict[str, Any] = {
        "n_layers": len(blocks),
        "dim": architecture.hidden_size,
        "n_heads": first.mixer.heads,  # type: ignore[union-attr]  # every block has attention here
        "attn_backend": "varlen",
    }
    if isinstance(first.mixer, LatentAttention):
        return _latent(package, first.mixer, [block.mlp for block in blocks], sizes, rope)
    attention = first.mixer
    assert isinstance(attention, Attention)  # noqa: S101 - torchtitan has no other
    sizes |= {"n_kv_heads": attention.kv_heads, "rope": replace(rope, dim=attention.head_dim)}
    if name == "llama3":
        return _built(package, "llama3", **sizes, hidden_dim=_width(first.mlp))
    sizes["head_dim"] = attention.head_dim
    if isinstance(last.mlp, Moe):
        return _built(package, "qwen3_moe", **sizes, **_experts(last.mlp), moe_comm_backend="standard")
    return _built(package, "qwen3", **sizes, hidden_dim=_width(first.mlp))


def _built(package: Any, name: str, **sizes: Any) -> list[Any]:
    """torchtitan's list of layers: the function is private there."""
    return list(getattr(package, f"_build_{name}_layers")(**sizes))


def _latent(package: Any, a: LatentAttention, networks: list[Any], sizes: dict[str, Any], rope: Any) -> list[Any]:
    dense = [m for m in networks if isinstance(m, Mlp)]
    routed = networks[-1]
    experts = _experts(routed)
    return _built(
        package,
        "dsv3",
        **sizes,
        n_dense_layers=len(dense),
        q_lora_rank=a.q_lora_rank or 0,
        kv_lora_rank=a.kv_lora_rank,
        qk_nope_head_dim=a.qk_nope_head_dim,
        qk_rope_head_dim=a.qk_rope_head_dim,
        v_head_dim=a.v_head_dim,
        mscale=1.0,
        dense_hidden_dim=_width(dense[0]) if dense else experts["moe_hidden_dim"],
        moe_hidden_dim=experts["moe_hidden_dim"],
        num_experts=experts["num_experts"],
        num_shared_experts=routed.shared_width // routed.width,
        router_top_k=experts["top_k"],
        router_score_func="sigmoid" if routed.router == "sigmoid" else "softmax",
        router_route_norm=routed.normalised_scores,
        router_num_expert_groups=routed.groups if routed.groups > 1 else None,
        router_num_limited_groups=routed.chosen_groups if routed.groups > 1 else None,
        moe_comm_backend="standard",
        non_blocking_capacity_factor=None,
        rope=replace(rope, dim=a.qk_rope_head_dim),
    )


def _experts(m: Moe) -> dict[str, int]:
    return {"moe_hidden_dim": m.width, "num_experts": m.experts, "top_k": m.experts_per_token}


def _width(m: Any) -> int:
    return int(m.width)
