"""SigLIP, as Gemma 3, PaliGemma, DeepSeek-VL, Idefics 3 and SmolVLM have it: square tiles without a class token.

modeling_siglip.py, modeling_gemma3.py, modeling_paligemma.py, modeling_idefics3.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import SIGLIP, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision
from memcheck.record import Record

SIDE, PATCH = 224, 16


class SiglipSizes(Record):
    """What a class has where its configuration is silent."""

    width: int = 768
    heads: int = 12
    inner: int = 3072
    depth: int = 12
    side: int = SIDE
    patch: int = PATCH


SMALL = SiglipSizes()
IDEFICS2 = SMALL._replace(patch=32)
IDEFICS3 = SMALL._replace(width=1152, heads=16, patch=32)


def read_gemma3(config: ConfigReader, around: AroundTower) -> Vision:
    """Gemma 3: average pooling to ``mm_tokens_per_image``, an RMSNorm, and one matrix that is a bare parameter."""
    outputs, tower = around.language.hidden_size, siglip(config, around, "gemma3", attention="separate")
    tokens = around.outer.integer("mm_tokens_per_image", default=256)
    projector = (
        ParameterTensor("mm_input_projection_weight", (tower.hidden, outputs), "projector"),
        ParameterTensor("mm_soft_emb_norm.weight", (tower.hidden,), "norm"),
    )
    return tower._replace(
        projector=projector,
        tile_tokens=tokens,
        merge=tower.tile // tokens,
        processor="square:see",
        separators=4,
        unused=pooling_head(config, tower),
    )


def read_paligemma(config: ConfigReader, around: AroundTower) -> Vision:
    """PaliGemma: every patch is an image token, projected by one matrix."""
    outputs, tower = around.language.hidden_size, siglip(config, around, "paligemma", attention="separate")
    around.outer.ignore("projection_dim", "hidden_size", "num_image_tokens", "vocab_size")
    config.ignore("projection_dim", "projector_hidden_act", "num_image_tokens", "vocab_size")
    return tower._replace(
        projector=linear("linear", outputs, tower.hidden, "projector", "none", bias=True),
        tile_tokens=tower.tile,
        merge=1,
        processor="square:see",
        unused=pooling_head(config, tower),
    )


def read_idefics3(config: ConfigReader, around: AroundTower) -> Vision:
    """Idefics 3 and SmolVLM: tiles with a padding mask, pixels shuffled by ``scale_factor``, one matrix."""
    scale = around.outer.integer("scale_factor", default=2)
    tower = siglip(config, around, "idefics3", attention="masked", silent=IDEFICS3)
    config.ignore("size", "max_image_size", "tie_word_embeddings", "use_base_siglip")
    around.outer.ignore("use_cache", "pixel_shuffle_factor", "use_reentrant_checkpointing")
    wide = tower.hidden * scale * scale
    return tower._replace(
        projector=linear("modality_projection.proj", around.language.hidden_size, wide, "projector", "none"),
        tile_tokens=tower.tile // (scale * scale),
        merge=scale * scale,
        processor="tiles:see_idefics3",
        mask_bytes=8,
        path="vision_model",
        projector_path="connector",
    )


def read_deepseek(config: ConfigReader, around: AroundTower) -> Vision:
    """DeepSeek-VL: every patch is an image token, after two matrices."""
    outputs, tower = around.language.hidden_size, siglip(config, around, "deepseek_vl", attention="separate")
    first = linear("linear1", outputs, tower.hidden, "projector", "none", bias=True)
    return tower._replace(
        projector=first + linear("linear2", outputs, outputs, "projector", "none", bias=True),
        tile_tokens=tower.tile,
        merge=1,
        processor="square:see",
        unused=pooling_head(config, tower),
        path="vision_model",
        projector_path="aligner",
    )


def siglip(config: ConfigReader, around: AroundTower, kind: str, attention: str, silent: SiglipSizes = SMALL) -> Vision:
    """The tower alone. ``silent``: its sizes where the configuration has none."""
    width = config.integer("hidden_size", default=silent.width)
    heads = config.integer("num_attention_heads", default=silent.heads)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=silent.inner)
    depth = config.integer("num_hidden_layers", default=silent.depth, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    side = square(config, "image_size", silent.side)
    patch = square(config, "patch_size", silent.patch)
    config.ignore("layer_norm_eps", "initializer_range", "rope_parameters")
    config.dropout("attention_dropout")
    mlp = tower_mlp(width, inner, config.activation(default="gelu_pytorch_tanh"), SIGLIP.mlp)
    tile = (side // patch) ** 2
    embedding = "embeddings.patch_embedding"
    stem = (
        ParameterTensor(embedding + ".weight", (width, colours, patch, patch), "vision"),
        ParameterTensor(embedding + ".bias", (width,), "vision"),
        ParameterTensor("embeddings.position_embedding.weight", (tile, width), "position"),
    )
    return Vision(
        kind=kind,
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, attention), depth),),
        channels=colours * patch * patch,
        merge=1,
        outputs=around.language.hidden_size,
        stem=stem,
        projector=(),
        hooked=True,
        closing=norm_pair("post_layernorm", width),
        tile=tile,
        patch=patch,
        heads=heads,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def pooling_head(config: ConfigReader, tower: Vision) -> tuple[ParameterTensor, ...]:
    """``vision_use_head``: an attention pooling that nothing reads (SiglipMultiheadAttentionPoolingHead)."""
    if not config.flag("vision_use_head", default=True):
        return ()
    h, mlp = tower.hidden, tower.blocks[0][0].mlp
    inner = getattr(mlp, "width", 0)
    return (
        ParameterTensor("head.probe", (1, 1, h), "vision"),
        ParameterTensor("head.attention.in_proj_weight", (3 * h, h), "attention"),
        ParameterTensor("head.attention.in_proj_bias", (3 * h,), "attention"),
        *linear("head.attention.out_proj", h, h, "attention", "none", bias=True),
        *norm_pair("head.layernorm", h),
        *tower_mlp(h, inner, "gelu", ("head.mlp.fc1", "head.mlp.fc2")).tensors,
    )
