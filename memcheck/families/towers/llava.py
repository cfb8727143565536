"""LLaVA, LLaVA-NeXT and LLaVA-OneVision: CLIP, Pixtral or SigLIP as the tower, two matrices as the projector.

modeling_llava.py, modeling_llava_next.py, modeling_clip.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import SIGLIP, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.families.towers.siglip import SIDE, pooling_head, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import OtherTower, Vision


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """LLaVA 1.5, and Pixtral as it is converted for transformers."""
    around.outer.ignore("image_seq_length", "vision_feature_select_strategy")
    kind = config.text("model_type", default="clip_vision_model")
    if kind == "pixtral":
        from memcheck.families.towers.pixtral import pixtral

        tower = pixtral(config, around, "pixtral")
        _feature_layer(around, -1)
        return tower._replace(projector=projector(around, tower.hidden), merge=1, processor="pixtral:see")
    if kind != "clip_vision_model":
        config.fail("model_type", f"memcheck reads no LLaVA with a {kind} tower", "read are CLIP's and Pixtral's")
    return _clip(config, around, "llava")._replace(processor="square:see")


def read_next(config: ConfigReader, around: AroundTower) -> Vision:
    """LLaVA-NeXT: tiles of a grid and an overview, unpadded, with a learned token after each row."""
    outputs = around.language.hidden_size
    around.outer.ignore("image_seq_length", "vision_feature_select_strategy", "image_grid_pinpoints")
    around.outer.ignore("use_image_newline_parameter")
    newline = ParameterTensor("image_newline", (outputs,), "projector")
    tower = _clip(config, around, "llava_next")
    return tower._replace(projector=(newline, *tower.projector), processor="anyres:see")


def read_next_video(config: ConfigReader, around: AroundTower) -> Vision:
    """LLaVA-NeXT-Video on pictures: LLaVA-NeXT. Clips, whose frames are pooled, have no memory model."""
    around.outer.ignore("spatial_pool_mode", "spatial_pool_stride", "video_seq_length")
    return read_next(config, around)


def read_video(config: ConfigReader, around: AroundTower) -> Vision:
    """Video-LLaVA on pictures: LLaVA with a second, idle tower for clips. Clips have no memory model."""
    around.outer.ignore("image_seq_length", "video_seq_length")
    if config.text("model_type", default="clip_vision_model") != "clip_vision_model":
        config.fail("model_type", "memcheck reads no Video-LLaVA with another tower than CLIP's")
    tower = _clip(config, around, "llava")
    layers = (*tower.blocks, *tower.idle)
    clips = OtherTower(part="vision", blocks=layers, tensors=(*tower.stem, *tower.unused))
    return tower._replace(processor="square:see", others=(clips,), path="image_tower")


def read_onevision(config: ConfigReader, around: AroundTower) -> Vision:
    """LLaVA-OneVision on pictures: SigLIP's rows in front of its last norm, tiles of a grid and an overview."""
    outer = around.outer
    outer.ignore("image_grid_pinpoints")
    kind = config.text("model_type", default="siglip_vision_model")
    if kind != "siglip_vision_model":
        config.fail("model_type", f"memcheck reads no LLaVA-OneVision with a {kind} tower", "SigLIP's is read")
    _feature_layer(around, -1)
    if outer.raw("vision_feature_layer") not in (None, -1):
        outer.fail("vision_feature_layer", "only rows of the last layer have a memory model")
    if outer.text("vision_feature_select_strategy", default="full") != "full":
        outer.fail("vision_feature_select_strategy", "a tower without a class token has only full features")
    if outer.text("vision_aspect_ratio", default="anyres_max_9") != "anyres_max_9":
        outer.fail("vision_aspect_ratio", "only anyres_max_9 has a memory model")
    tower = siglip(config, around, "llava_onevision", attention="separate")
    newline = ParameterTensor("image_newline", (around.language.hidden_size,), "projector")
    return tower._replace(
        closing=(),
        unused=(*tower.closing, *pooling_head(config, tower)),
        projector=(newline, *projector(around, tower.hidden)),
        tile_tokens=tower.tile,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        side=square(config, "image_size", SIDE),
        processor="anyres:see_onevision",
    )


def projector(around: AroundTower, width: int) -> tuple[ParameterTensor, ...]:
    """``linear_1``, an activation, ``linear_2``."""
    outer, outputs = around.outer, around.language.hidden_size
    bias = outer.flag("multimodal_projector_bias", default=True)
    found = linear("linear_1", outputs, width, "projector", "none", bias=bias)
    return found + linear("linear_2", outputs, outputs, "projector", "none", bias=bias)


def _feature_layer(around: AroundTower, default: int) -> int:
    """The hidden states that are read, counted from the last."""
    layer = around.outer.raw("vision_feature_layer")
    if layer is None:
        return default
    if not isinstance(layer, int) or isinstance(layer, bool) or layer >= 0:
        around.outer.fail(
            "vision_feature_layer", f"vision_feature_layer = {layer!r} has no memory model", "one layer from the end is"
        )
    return layer


def _clip(config: ConfigReader, around: AroundTower, kind: str, read: int = 0) -> Vision:
    """CLIP's tower. The features are those of a layer before the last: the layers after it get no gradient.

    ``read``: how many layers are read; 0 = what ``vision_feature_layer`` says.
    """
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=12)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    side, patch = square(config, "image_size", 224), square(config, "patch_size", 32)
    inner = config.integer("intermediate_size", default=3072)
    config.ignore("projection_dim", "vocab_size", "layer_norm_eps", "initializer_factor")
    config.dropout("attention_dropout")
    mlp = tower_mlp(width, inner, config.activation(default="quick_gelu"), SIGLIP.mlp)
    block = tower_layer(width, heads, mlp, "separate")
    read = read or depth + 1 + _feature_layer(around, -2)
    strategy = around.outer.text("vision_feature_select_strategy", default="default")
    if strategy != "default" or not 0 < read <= depth:
        around.outer.fail(
            "vision_feature_select_strategy", f"{strategy!r} features of layer {read} have no memory model"
        )
    patches = (side // patch) ** 2
    around.outer.activation("projector_hidden_act", default="gelu")
    return Vision(
        kind=kind,
        hidden=width,
        blocks=((block, read),),
        idle=((block, depth - read),) if read < depth else (),
        channels=colours * patch * patch,
        merge=1,
        outputs=around.language.hidden_size,
        stem=(
            ParameterTensor("embeddings.class_embedding", (width,), "vision"),
            ParameterTensor("embeddings.patch_embedding.weight", (width, colours, patch, patch), "vision"),
            ParameterTensor("embeddings.position_embedding.weight", (patches + 1, width), "position"),
            *norm_pair("pre_layrnorm", width),
        ),
        projector=projector(around, width),
        hooked=True,
        unused=norm_pair("post_layernorm", width),
        tile=patches + 1,
        tile_tokens=patches,
        classes=1,
        patch=patch,
        heads=heads,
        activation=around.outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        projector_path="multi_modal_projector",
    )
