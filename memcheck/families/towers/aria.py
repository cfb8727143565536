"""Aria: Idefics 3's tower on padded pictures, and learned rows that read each picture's (modeling_aria.py)."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair
from memcheck.families.towers.siglip import IDEFICS3, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_SIZE, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

QUERIES = {1225: 128, 4900: 256}
"""Image tokens by the number of a picture's rows, where the configuration states none."""
DIGITS = 10
"""More than a number of rows has."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: aria``. The rows are read before the tower's last norm, whose result is unused."""
    outer, outputs = around.outer, around.language.hidden_size
    kind = config.text("model_type", default="idefics3_vision")
    if kind != "idefics3_vision":
        config.fail("model_type", f"memcheck reads no Aria with a {kind} tower", "read is idefics3_vision")
    if outer.raw("vision_feature_layer") not in (None, -1):
        outer.fail("vision_feature_layer", "only rows of the last layer have a memory model")
    outer.ignore("initializer_range", "max_value_projector_patch_to_query_dict", "vision_feature_select_strategy")
    outer.ignore("projector_hidden_act")
    queries = _queries(outer)
    tower = siglip(config, around, "aria", attention="masked", silent=IDEFICS3)
    if tower.tile not in queries:
        outer.fail("projector_patch_to_query_dict", f"no number of image tokens for the {tower.tile} rows of a picture")
    width, heads = tower.hidden, tower.heads
    reader = "cross_attn."
    return tower._replace(
        closing=(),
        unused=tower.closing,
        projector=(
            ParameterTensor("query", (max(queries.values()), width), "projector"),
            *norm_pair(f"{reader}layer_norm", width),
            *norm_pair(f"{reader}layer_norm_kv", width),
            *linear(f"{reader}q_proj", width, width, "projector", "none"),
            *linear(f"{reader}k_proj", width, width, "projector", "none"),
            *linear(f"{reader}v_proj", width, width, "projector", "none"),
            ParameterTensor(f"{reader}multihead_attn.in_proj_weight", (3 * width, width), "projector"),
            ParameterTensor(f"{reader}multihead_attn.in_proj_bias", (3 * width,), "projector"),
            *linear(f"{reader}multihead_attn.out_proj", width, width, "projector", "none", bias=True),
            *linear(f"{reader}linear", width, width, "projector", "none", bias=True),
            *norm_pair("layer_norm", width),
            *linear("feed_forward.linear_in", outputs, width, "projector", "none"),
            *linear("feed_forward.linear_out", outputs, outputs, "projector", "none"),
        ),
        perceiver=Perceiver(
            latents=max(queries.values()), heads=heads, kv_heads=heads, head_dim=width // heads, activation="gelu_new"
        ),
        resampled=queries[tower.tile],
        merge=1,
        tile=0,
        side=tower.tile,
        cast=False,
        gives_out=False,
        mask_bytes=1,
        processor="square:see_resampled",
    )


def _queries(outer: ConfigReader) -> dict[int, int]:
    """Image tokens by rows of a picture; keys are text in a file."""
    key = "projector_patch_to_query_dict"
    stated = outer.raw(key)
    if stated is None:
        return QUERIES
    if not isinstance(stated, Mapping) or not stated:
        outer.fail(key, f"{key} must be a mapping from rows to image tokens")
    found: dict[int, int] = {}
    for rows, tokens in stated.items():
        text = str(rows)
        counts = text.isascii() and text.isdigit() and len(text) < DIGITS
        if not counts or isinstance(tokens, bool) or not isinstance(tokens, int):
            outer.fail(key, f"{key} must have numbers of rows and of image tokens")
        if not 1 <= tokens <= MAX_SIZE:
            outer.fail(key, f"{key} = {tokens} is outside 1 ... {MAX_SIZE}")
        found[int(text)] = tokens
    return found
