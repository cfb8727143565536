"""Llama 3.2 Vision: four tiles of each picture in one sequence, local layers, gated global ones, earlier layers' rows.

modeling_mllama.py of transformers 5.23. Pictures of fewer tiles are padded to as many, and each tile's rows to a
multiple of eight.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import LayerNames, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.families.mllama import crossing_layers
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

ALIGNMENT = 8
"""Rows of a tile are padded to a multiple of it."""
RATIOS = 8
"""Grids of up to four tiles: ``supported_aspect_ratios`` of the class."""
NAMES = LayerNames(output="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm"))


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: mllama``."""
    width = config.integer("hidden_size", default=1280)
    heads = config.integer("attention_heads", "num_attention_heads", default=16)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    behind = config.integer("num_global_layers", default=8, maximum=MAX_LAYERS)
    inner = config.integer("intermediate_size", default=5120)
    colours = config.integer("num_channels", default=3)
    side, patch = square(config, "image_size", 448), square(config, "patch_size", 14)
    tiles = config.integer("max_num_tiles", default=4)
    earlier = config.integers("intermediate_layers_indices") or (3, 7, 15, 23, 30)
    for index in earlier:
        if not -depth <= index < depth:
            config.fail("intermediate_layers_indices", f"layer {index} is not among the tower's {depth}")
    wide = (len(earlier) + 1) * width
    stated = config.integer("vision_output_dim", default=wide)
    if stated != wide:
        config.fail("vision_output_dim", f"{len(earlier)} earlier layers and the last have {wide}")
    ratios = config.raw("supported_aspect_ratios")
    grids = len(ratios) if isinstance(ratios, (list, tuple)) else RATIOS
    config.ignore("initializer_range", "norm_eps", "supported_aspect_ratios")
    mlp = tower_mlp(width, inner, config.activation(default="gelu"), NAMES.mlp)
    rows = (side // patch) ** 2 + 1
    padded = -(-rows // ALIGNMENT) * ALIGNMENT
    outputs = around.language.hidden_size
    text = around.outer.raw("text_config")
    section = ConfigReader(text, "mllama", "text_config.") if isinstance(text, dict) else around.outer
    local = _layer(width, heads, mlp.width, mlp.activation)
    gates = tuple(ParameterTensor(name, (1,), "vision") for name in ("gate_attn", "gate_ffn"))
    return Vision(
        kind="mllama",
        hidden=width,
        blocks=((local, depth), (local._replace(extra_tensors=gates, layer_scale=True, tanh_gates=True), behind)),
        channels=colours * patch * patch,
        merge=1,
        outputs=outputs,
        stem=(
            ParameterTensor("patch_embedding.weight", (width, colours, patch, patch), "vision"),
            *_by_ratio("pre_tile_positional_embedding", grids, tiles * width),
            ParameterTensor("class_embedding", (width,), "vision"),
            ParameterTensor("gated_positional_embedding.gate", (1,), "vision"),
            ParameterTensor("gated_positional_embedding.embedding", (rows, width), "position"),
            ParameterTensor(
                "gated_positional_embedding.tile_embedding.weight", (grids + 1, tiles * rows * width), "position"
            ),
            *norm_pair("layernorm_pre", width),
        ),
        closing=(),
        projector=linear("multi_modal_projector", outputs, wide, "projector", "none", bias=True),
        between=(
            *norm_pair("layernorm_post", width),
            *_by_ratio("post_tile_positional_embedding", grids, tiles * width),
        ),
        gathered=tuple(sorted(index % depth for index in earlier)),
        hooked=True,
        checkpointed=False,
        tiles=tiles,
        crosses=tuple(i for i in crossing_layers(section) if i < _layers(around)),
        tile=tiles * padded,
        tile_tokens=tiles * rows,
        budgets=(tiles * padded,),
        classes=tiles * (padded - rows + 1),
        gives_out=False,
        patch=patch,
        heads=heads,
        processor="square:see_padded",
        path="vision_model",
        projector_path="multi_modal_projector",
    )


def _layers(around: AroundTower) -> int:
    a = around.language
    return a.num_layers + sum(n for other in a.others for _, n in other.blocks)


def _by_ratio(name: str, grids: int, width: int) -> tuple[ParameterTensor, ParameterTensor]:
    """A table with a row for each grid of tiles, and its gate."""
    return (
        ParameterTensor(name + ".embedding.weight", (grids + 1, width), "position"),
        ParameterTensor(name + ".gate", (1,), "vision"),
    )


def _layer(width: int, heads: int, inner: int, activation: str) -> Block:
    block = tower_layer(width, heads, tower_mlp(width, inner, activation, NAMES.mlp), "additive", NAMES, bias=False)
    mixer = block.mixer
    tensors = tuple(t for t in mixer.tensors if t.linear) if isinstance(mixer, TowerAttention) else ()
    attention = TowerAttention(heads=heads, head_dim=width // heads, kind="additive", tensors=tensors, bias=False)
    return block._replace(mixer=attention)
