"""PerceptionLM: Perception Encoder as timm builds it, two matrices, and pooled image tokens.

modeling_perception_lm.py and modeling_timm_wrapper.py of transformers 5.23, timm 1.0.31 models/eva.py.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import norm_pair, split_width, square, tower_mlp
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record


class TimmEncoder(Record):
    """What an entry of timm has where ``model_args`` is silent."""

    width: int
    heads: int
    ratio: float
    classes: int
    core: bool
    """Whether the encoder is Perception Encoder's core, the default where ``model_args`` states nothing else: no layer
    scale, a final norm, and attention pooling.
    """


LARGE = TimmEncoder(width=1024, heads=16, ratio=4.0, classes=1, core=True)
GIGANTIC = TimmEncoder(width=1536, heads=16, ratio=8960 / 1536, classes=0, core=True)
ENCODERS = {
    "vit_pe_core_large_patch14_336": LARGE,
    "vit_pe_core_gigantic_patch14_448": GIGANTIC,
    "vit_pe_lang_large_patch14_448": LARGE._replace(core=False),
    "vit_pe_lang_gigantic_patch14_448": GIGANTIC._replace(core=False),
}
ARGUMENTS = (
    "depth", "embed_dim", "global_pool", "img_size", "init_values", "num_classes", "num_heads", "ref_feat_shape",
    "use_post_transformer_norm",
)  # fmt: skip
"""What ``model_args`` may have."""
PATCH = 14


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: perception_lm``."""
    outer, outputs = around.outer, around.language.hidden_size
    name = config.text("architecture", default="resnet50")
    entry = ENCODERS.get(name)
    if entry is None:
        config.fail("architecture", f"memcheck reads no {name} tower", f"read are {', '.join(ENCODERS)}")
    config.ignore("model_type", "initializer_range", "num_classes", "label_names", "num_labels", "id2label", "label2id")
    config.ignore("do_pooling", "num_features", "global_pool", "pretrained_cfg", "_name_or_path")
    args = config.section("model_args")
    for key in args.config:
        if key not in ARGUMENTS:
            args.fail(key, f"model_args.{key} has no memory model", "remove it: released files have none")
    args.ignore("num_classes", "ref_feat_shape")  # there is no head; what rotations are scaled to
    width = args.integer("embed_dim", default=entry.width)
    heads = args.integer("num_heads", default=entry.heads)
    split_width(args, width, heads)
    if not args.has("img_size"):
        args.fail("img_size", "model_args.img_size is missing: it says how many rows a tile has")
    depth, side = args.integer("depth", maximum=MAX_LAYERS), square(args, "img_size", 448)
    if args.text("global_pool", default="map" if entry.core else ""):
        args.fail("global_pool", "rows that are pooled have no memory model", 'released files have ""')
    if args.flag("use_post_transformer_norm", default=entry.core):
        args.fail("use_post_transformer_norm", "a norm behind the layers has no memory model", "released: false")
    if not args.number("init_values", default=0.0 if entry.core else 0.1):
        args.fail("init_values", "layers that scale nothing have no memory model", "released files have 0.1")
    if bool(entry.classes) != outer.flag("vision_use_cls_token", default=True):
        outer.fail("vision_use_cls_token", f"the tower {name} has {entry.classes} class tokens")
    ratio = outer.integer("projector_pooling_ratio", default=1)
    across = side // PATCH
    if across % ratio:
        outer.fail("projector_pooling_ratio", f"{across} patches of a tile's side are no multiple of {ratio}")
    tile = across * across + entry.classes
    token = (ParameterTensor("cls_token", (1, 1, width), "vision"),) if entry.classes else ()
    return Vision(
        kind="perception",
        hidden=width,
        blocks=((_layer(width, heads, int(width * entry.ratio)), depth),),
        channels=3 * PATCH * PATCH,
        merge=ratio * ratio,
        outputs=outputs,
        stem=(
            *token,
            ParameterTensor("pos_embed", (1, tile, width), "position"),
            ParameterTensor("patch_embed.proj.weight", (width, 3, PATCH, PATCH), "vision"),
            *norm_pair("norm_pre", width),
        ),
        projector=(
            *linear("linear_1", outputs, width, "projector", "none", bias=True),
            *linear("linear_2", outputs, outputs, "projector", "none", bias=True),
        ),
        hooked=False,
        checkpointed=False,
        tile=tile,
        tile_tokens=(across // ratio) ** 2,
        classes=entry.classes,
        patch=PATCH,
        processor="tiles:see_perception",
        heads=heads,
        path="vision_tower.timm_model",
        projector_path="multi_modal_projector",
    )


def _layer(width: int, heads: int, inner: int) -> Block:
    """``EvaBlock`` with ``attn_type: rope``."""
    tensors = linear("attn.qkv", 3 * width, width, "attention", "column", bias=True)
    tensors += linear("attn.proj", width, width, "attention", "row", bias=True)
    return Block(
        mixer=TowerAttention(heads=heads, head_dim=width // heads, kind="packed-prefixed", tensors=tensors),
        mlp=tower_mlp(width, inner, "gelu", ("mlp.fc1", "mlp.fc2")),
        input_norm=Norm("layernorm", width, bias=True, name="norm1"),
        mlp_norm=Norm("layernorm", width, bias=True, name="norm2"),
        extra_tensors=tuple(ParameterTensor(name, (width,), "mlp") for name in ("gamma_1", "gamma_2")),
        layer_scale=True,
        named_output=True,
    )
