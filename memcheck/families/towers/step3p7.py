"""Step 3.7: CLIP's layers with a scale of each branch, and two convolutions after them (modeling_step3p7.py).

What it holds is counted. Each picture is seen whole, and again in squares of another size. Neither has a memory model,
so that the tower is idle: steps are of text alone.
"""

from __future__ import annotations

from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    Pixels,
    idle_projector,
    norm_pair,
    patch_convolution_tensors,
    read_pixels,
    require_divisible_heads,
    tower_layer,
    tower_mlp,
)
from memcheck.models.decoder import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import IdleTowers, OtherTower

NAMES = LayerNames(norms=("layernorm_before", "layernorm_after"))
WIDER = 8960 / 1536
"""``mlp_ratio`` of the class."""


def read(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: step3p7``. Its inner width is always the ratio's."""
    width = config.integer("hidden_size", "width", default=1536)
    heads = config.integer("num_attention_heads", "heads", default=16)
    require_divisible_heads(config, width, heads)
    inner = int(width * config.number("mlp_ratio", default=WIDER))
    depth = config.integer("num_hidden_layers", "layers", default=47, maximum=MAX_LAYERS)
    pixels = read_pixels(config, Pixels(3, side_pixels=728, patch_side=14))
    config.ignore("model_type", "intermediate_size", "hidden_act", "layer_scale_init_value", "ls_init_value")
    config.ignore("layer_norm_eps", "initializer_range", "max_position_embeddings", "rope_parameters")
    config.dropout("attention_dropout")
    scales = tuple(ParameterTensor(name, (width,), "mlp") for name in ("lambda_1", "lambda_2"))
    block = tower_layer(width, heads, tower_mlp(width, inner, "quick_gelu", NAMES.mlp), "separate", NAMES, extra=scales)
    tensors = [
        *patch_convolution_tensors("embeddings.patch_embedding", width, pixels, bias=False),
        ParameterTensor("embeddings.position_embedding.weight", (pixels.patches, width), "position"),
        *norm_pair("pre_layernorm", width),
    ]
    for name, rows in (("downsampler1", width), ("downsampler2", 2 * width)):
        tensors.append(ParameterTensor(f"{name}.weight", (2 * rows, rows, 3, 3), "vision"))
        tensors.append(vector(f"{name}.bias", 2 * rows, "vision"))
    outputs, bias = model.language.hidden_size, model.outer.flag("projector_bias")
    projector = linear("multi_modal_projector", outputs, 4 * width, "projector", "none", bias=bias)
    tower = OtherTower(
        part="vision",
        path="model.vision_model.",
        layers_path="layers",
        blocks=((block, depth),),
        tensors=tuple(tensors),
    )
    return IdleTowers((tower, idle_projector(projector)))
