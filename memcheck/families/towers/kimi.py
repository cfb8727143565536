"""Kimi K2.5 and K2.6: MoonViT on patches of all pictures in one row, merged by fours (modeling_kimi_k25.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair, split_width
from memcheck.families.towers.qwen import packed_block, packed_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: kimi_k25``. Files of the checkpoint's own code have names of their own for these keys."""
    outer, outputs = around.outer, around.language.hidden_size
    width = config.integer("hidden_size", "vt_hidden_size", default=1152)
    heads = config.integer("num_attention_heads", "vt_num_attention_heads", default=16)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", "vt_num_hidden_layers", default=27, maximum=MAX_LAYERS)
    inner = config.integer("intermediate_size", "vt_intermediate_size", default=4304)
    high = config.integer("pos_emb_height", "init_pos_emb_height", default=64)
    wide = config.integer("pos_emb_width", "init_pos_emb_width", default=64)
    frames = config.integer("pos_emb_time", "init_pos_emb_time", default=4)
    patch = config.integer("patch_size", default=14)
    kernel = config.integers("merge_kernel_size") or (2, 2)
    config.ignore(
        "model_type", "rope_parameters", "initializer_range", "merge_type", "mm_projector_type", "pos_emb_type",
        "projector_hidden_act", "projector_ln_eps", "video_attn_type",
    )  # fmt: skip
    for key, value in (("mm_hidden_size", width), ("text_hidden_size", outputs)):
        if config.integer(key, default=value) != value:
            config.fail(key, f"{key} is not {value}, the width of what it names")
    if outer.integer("projection_hidden_size", default=width, null=width) != width:
        outer.fail("projection_hidden_size", f"projection_hidden_size is not the tower's width {width}")
    outer.ignore(
        "media_placeholder_token_id", "projection_layer_norm_eps", "use_unified_vision_chunk", "video_placeholder"
    )
    merge = kernel[0] * kernel[-1]
    mlp = packed_mlp(width, inner, config.activation(default="gelu_pytorch_tanh"), ("fc1", "fc2"), gated=False)
    inputs = tuple(t for n in "qkv" for t in linear(f"attn.{n}_proj", width, width, "attention", "column", bias=True))
    attention = TowerAttention(
        heads=heads,
        head_dim=width // heads,
        kind="qwen-separate",
        tensors=inputs + linear("attn.proj", width, width, "attention", "row", bias=True),
    )
    joined = width * merge
    return Vision(
        kind="kimi",
        hidden=width,
        blocks=((packed_block(width, heads, mlp, "layernorm", attention=attention), depth),),
        channels=3 * patch * patch,
        merge=merge,
        outputs=outputs,
        stem=(
            ParameterTensor("patch_embed.proj.weight", (width, 3, patch, patch), "vision"),
            ParameterTensor("patch_embed.proj.bias", (width,), "vision"),
            ParameterTensor("patch_embed.pos_emb.position_embeddings", (high, wide, width), "position"),
        ),
        projector=(
            *norm_pair("pre_norm", width),
            *linear("in_proj", joined, joined, "projector", "none", bias=True),
            *linear("out_proj", outputs, joined, "projector", "none", bias=True),
        ),
        hooked=False,
        narrow=True,
        cast=False,
        closing=norm_pair("final_layernorm", width),
        held_table=(frames + 1) * width,
        patch=patch,
        separators=2,
        gives_out=False,
        heads=heads,
        path="vision_tower",
        projector_path="mm_projector",
    )
