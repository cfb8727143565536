"""Gemma 4's tower: padded pictures, axial rotations, average pooling by position (modeling_gemma4.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.conformer import read_audio
from memcheck.families.towers.parts import HARMLESS, square
from memcheck.models.parts.decoder import rms_norm
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

NORM = "rmsnorm-fp32-weight"
SOFT_TOKENS = 280
"""Image tokens that the released checkpoints' processor fills or pads a picture to (image_processing_gemma4.py)."""
BUDGETS = (70, 140, 280, 560, 1120)
"""Image tokens that it takes instead (``max_soft_tokens``)."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: gemma4``."""
    outputs, outer = around.language.hidden_size, around.outer
    outer.ignore("initializer_range")
    soft_tokens = outer.integer("vision_soft_tokens_per_image", default=SOFT_TOKENS)
    width = config.integer("hidden_size", default=768)
    patch = square(config, "patch_size", 16)
    merge = config.integer("pooling_kernel_size", default=3) ** 2
    table = config.integer("position_embedding_size", default=10240)
    config.ignore(*HARMLESS, "max_position_embeddings", "attention_bias", "rms_norm_eps")
    config.ignore("default_output_length", "image_seq_length", "video_seq_length", "global_head_dim")
    clipped, block = _block(config, width)
    depth = config.integer("num_hidden_layers", default=16, maximum=MAX_LAYERS)
    stem = (
        *linear("patch_embedder.input_proj", width, 3 * patch * patch, "vision", "none"),
        ParameterTensor("patch_embedder.position_embedding_table", (2, table, width), "position"),
    )
    return Vision(
        kind="gemma4",
        hidden=width,
        blocks=((block, depth),),
        channels=3 * patch * patch,
        merge=merge,
        outputs=outputs,
        stem=stem,
        projector=linear("embedding_projection", outputs, width, "projector", "none"),
        hooked=False,
        tile=soft_tokens * merge,
        tile_tokens=soft_tokens,
        budgets=BUDGETS,
        position_bytes=2 * 8,
        patch=patch,
        processor="soft_tokens:see",
        separators=2,
        heads=block.mixer.heads if isinstance(block.mixer, TowerAttention) else 0,
        standardized=config.flag("standardize"),
        held_scalars=7 * 4 * depth if clipped else 0,
        others=read_audio(outer, outputs),
        path="vision_tower",
        projector_path="embed_vision",
    )


def _block(config: ConfigReader, width: int) -> tuple[bool, Block]:
    heads = config.integer("num_attention_heads", default=12)
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if kv_heads != heads:
        config.fail("num_key_value_heads", "a tower with fewer heads of keys than of queries has no memory model")
    head_dim = config.integer("head_dim", default=64)
    inner = config.integer("intermediate_size", default=3072)
    clipped = config.flag("use_clipped_linears")
    config.dropout("attention_dropout")
    activation = config.activation("hidden_activation", default="gelu_pytorch_tanh")
    tensors: tuple[ParameterTensor, ...] = ()
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors += linear(f"self_attn.{name}.linear", heads * head_dim, width, "attention", "column")
    tensors += linear("self_attn.o_proj.linear", width, heads * head_dim, "attention", "row")
    query_norm, key_norm = (Norm(NORM, head_dim, name=f"self_attn.{name}") for name in ("q_norm", "k_norm"))
    matrices = (
        *linear("mlp.gate_proj.linear", inner, width, "mlp", "column"),
        *linear("mlp.up_proj.linear", inner, width, "mlp", "column"),
        *linear("mlp.down_proj.linear", width, inner, "mlp", "row"),
    )
    mixer = TowerAttention(
        heads=heads,
        head_dim=head_dim,
        kind="axial",
        tensors=(*tensors, *norm_tensors(query_norm), *norm_tensors(key_norm)),
        bias=False,
        query_norm=query_norm,
        key_norm=key_norm,
        clipped=clipped,
    )
    return clipped, Block(
        mixer=mixer,
        mlp=Mlp(inner, True, activation, tensors=matrices, clipped=clipped),
        input_norm=rms_norm(width, "input_layernorm", NORM),
        mlp_norm=rms_norm(width, "pre_feedforward_layernorm", NORM),
        mixer_output_norm=rms_norm(width, "post_attention_layernorm", NORM),
        mlp_output_norm=rms_norm(width, "post_feedforward_layernorm", NORM),
    )
