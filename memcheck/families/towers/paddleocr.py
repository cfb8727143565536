"""SigLIP on the rows of all pictures in one sequence, rotated by place, a kernel each: PaddleOCR-VL, VideoLLaMA 3.

modeling_paddleocr_vl.py, modeling_video_llama_3.py of transformers 5.23.

PaddleOCR-VL: SigLIP's patches of all pictures as rows, positions between grid points (modeling_paddleocr_vl.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import add, cast, copy
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import TowerForward, norm_pair, two_matrices
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    keep_in_variable,
    last_hidden_state,
    layer_norm,
    patch_convolution,
    require_input_grads,
)
from memcheck.families.towers.qwen import interpolated_positions, merge, rotary_tables
from memcheck.families.towers.siglip import siglip
from memcheck.models.reader import ConfigReader
from memcheck.models.vision import Vision


def read_paddle(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: paddleocr_vl``: positions between grid points, a norm, two matrices for four
    patches each.
    """
    outputs = model.language.hidden_size
    model.outer.ignore("vision_start_token_id", "vision_end_token_id")
    config.ignore("temporal_patch_size", "tokens_per_second", "model_type")
    tower = siglip(config, model, "paddleocr:paddleocr", attention="packed-separate")
    merge = config.integer("spatial_merge_size", default=2) ** 2
    merged_width = tower.hidden * merge
    matrices = two_matrices(("linear_1", "linear_2"), merged_width, merged_width, outputs)
    return tower._replace(
        patches_per_token=merge,
        embedding_can_be_hooked=False,
        rows_per_tile=0,
        projector_tensors=norm_pair("pre_norm", tower.hidden) + matrices,
        processor="processors:process_paddle",
        separator_tokens=2,
        returns_image_tokens=False,
        activation="gelu",
        path="visual",
        layers_path="vision_model.encoder.layers",
        projector_path="projector",
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: patches and interpolated positions: [patches, hidden].

    Also returns the rotary tables, which live while the layers run. ``require_grad``: make the output of
    ``patch_embedding`` require a gradient, as ``enable_input_require_grads`` does.
    """
    weight, bias, table = vision.stem_tensors
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens, weight, bias, outside=True), require_grad=require_grad
    )
    position = interpolated_positions(ctx, table)
    x = add(ctx.tape, x, cast(ctx.tape, position, x.dtype), "add positions")
    if not (require_grad or ctx.setting.trained or (ctx.setting.adapter is not None and ctx.setting.adapter.targets)):
        keep_in_variable(ctx, x)  # `inputs_embeds` of the encoder, which nothing saves
    return x, live + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``projector``: image tokens [patches / 4, text hidden].

    The projector copies four patches side by side into one row.
    """
    x = last_hidden_state(ctx, vision, x)
    x = copy(ctx.tape, layer_norm(ctx, x, vision.projector_tensors[:2]), "merge patches")
    return cat_image_tokens(ctx, merge(ctx, vision, x, vision.projector_tensors[2:]))


FORWARDS = {
    "paddleocr": TowerForward(stem, project, wrapped_modules=()),
}
"""By name, the forward passes of a kind of tower."""
