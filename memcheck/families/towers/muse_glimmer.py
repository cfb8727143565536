"""Muse Glimmer: Kimi's layers on windows of rows of all pictures, merged by fours (modeling_muse_glimmer.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import LayerNames, norm_pair, split_width, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

NAMES = LayerNames(
    queries="attn.q_proj", keys="attn.k_proj", values="attn.v_proj", output="attn.proj", norms=("norm1", "norm2")
)
FULL, WINDOWED, PERIOD = "full_attention", "window_attention", 4


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: muse_glimmer``."""
    outer, outputs = around.outer, around.language.hidden_size
    width = config.integer("hidden_size", default=1536)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=50, maximum=MAX_LAYERS)
    patch, frames = config.integer("patch_size", default=14), config.integer("patch_temporal", default=2)
    high = config.integer("pos_emb_height", default=32)
    side = config.integer("merge_size", default=2)
    config.ignore("model_type", "rope_parameters", "initializer_range", "layer_norm_eps", "max_position_embeddings")
    inner, activation = config.integer("intermediate_size", default=8960), config.activation(default="gelu")
    block = tower_layer(width, heads, tower_mlp(width, inner, activation, NAMES.mlp), "packed-tables", NAMES)
    types = layer_types(
        config, depth, lambda i: WINDOWED if (i + 1) % PERIOD and i + 1 < depth else FULL, (FULL, WINDOWED)
    )

    def make(kind: str) -> Block:
        if kind == FULL or not isinstance(block.mixer, TowerAttention):
            return block
        return block._replace(mixer=block.mixer._replace(window=high * high))

    joined = width * side * side
    if outer.integer("out_hidden_size", default=6144) != joined:
        outer.fail("out_hidden_size", f"out_hidden_size is not {joined}, the width of {side * side} merged rows")
    between, pixels = outer.integer("projector_hidden_size", default=4096), 3 * frames * patch * patch
    return Vision(
        kind="muse_glimmer",
        hidden=width,
        blocks=stack(types, make),
        channels=pixels,
        merge=side * side,
        outputs=outputs,
        stem=(
            *linear("patch_embedder.patch_embedding", width, pixels, "vision", "none"),
            ParameterTensor(
                "patch_embedder.position_embedding_table.weight",
                (high * config.integer("pos_emb_width", default=32), width),
                "position",
            ),
            *norm_pair("ln_pre", width),
        ),
        projector=(
            *linear("vision_adapter.fc1", between, joined, "projector", "none"),
            *linear("vision_adapter.fc2", between, between, "projector", "none"),
            *linear("vision_projection", outputs, between, "projector", "none"),
        ),
        hooked=False,
        closing=norm_pair("ln_post", width),
        patch=patch,
        processor="muse_glimmer:see",
        separators=2,
        gives_out=False,
        heads=heads,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        projector_path="",
    )
