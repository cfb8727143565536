"""Granite Speech: a conformer with a head for its middle rows, and a Q-Former, which are idle in steps without sounds.

modeling_granite_speech.py of transformers 5.23; the Q-Former is BLIP-2's (modeling_blip_2.py).
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import norm_pair
from memcheck.models.towers.qformer import qformer
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import OtherTower, RestingTowers


def read(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: granite_speech`` and ``granite_speech_plus``, whose projector reads some layers' rows in addition
    to the last. The adapter that their repositories hold as well as the model is not counted.
    """
    outer, outputs = around.outer, around.language.hidden_size
    width = config.integer("hidden_dim", "hidden_size", default=1024)
    layers = config.integer("num_layers", "num_hidden_layers", default=10, maximum=MAX_LAYERS)
    heads = config.integer("num_heads", "num_attention_heads", default=8)
    each = config.optional_integer("dim_head") or width // heads
    bins, named = config.integer("input_dim", "num_mel_bins", default=160), config.integer("output_dim", default=42)
    positions = 2 * config.integer("max_pos_emb", default=512) + 1
    inner = width * config.integer("feedforward_mult", default=4)
    wide = width * config.integer("conv_expansion_factor", default=2)
    context = config.integer("context_size", default=200)
    kernel = config.integer("conv_kernel_size", default=15)
    joined = config.integers("cat_hidden_layers") if outer.model_type == "granite_speech_plus" else None
    config.ignore("model_type", "dropout", "initializer_range")
    if outer.flag("has_lora_adapter", default=True):
        outer.note("has_lora_adapter: the adapter beside the checkpoint, for sounds, is not counted")
    outer.ignore("initializer_range")
    found: tuple[ParameterTensor, ...] = ()
    for half in ("ff1", "ff2"):
        found += norm_pair(f"{half}.pre_norm", width)
        found += linear(f"{half}.up_proj", inner, width, "audio", "none", bias=True)
        found += linear(f"{half}.down_proj", width, inner, "audio", "none", bias=True)
    found += norm_pair("attn.pre_norm", width)
    found += linear("attn.to_q", heads * each, width, "audio", "none")
    found += linear("attn.to_kv", 2 * heads * each, width, "audio", "none")
    found += linear("attn.to_out", width, heads * each, "audio", "none", bias=True)
    found += (ParameterTensor("attn.rel_pos_emb.weight", (positions, each), "audio"),)
    found += norm_pair("conv.norm", width)
    found += _conv("conv.up_conv", 2 * wide, width)
    found += (ParameterTensor("conv.depth_conv.conv.weight", (wide, 1, kernel), "audio"),)
    found += norm_pair("conv.batch_norm", wide) + _conv("conv.down_conv", width, wide) + norm_pair("post_norm", width)
    block = Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=found)
    ends = (
        *linear("input_linear", width, bins, "audio", "none", bias=True),
        *linear("out", named, width, "audio", "none", bias=True),
        *linear("out_mid", width, named, "audio", "none", bias=True),
    )
    # `attention_dists` in int64; means and variances of batch norms, which may be narrower
    tower = OtherTower(part="audio", blocks=((block, layers),), tensors=ends, table=2 * context**2 + 2 * wide * layers)
    read = width * (1 + len(joined)) if joined is not None else 0
    return RestingTowers((tower, *_projector(outer, outputs, read)))


def _projector(outer: ConfigReader, outputs: int, stated: int) -> tuple[OtherTower, ...]:
    """Learned rows that read the frames of each window. ``stated``: the width of those by the tower; 0: unsaid."""
    window, rate = outer.integer("window_size", default=15), outer.integer("downsample_rate", default=5)
    config = outer.section("projector_config")
    if config.text("model_type", default="blip_2_qformer") != "blip_2_qformer":
        config.fail("model_type", "memcheck reads no Granite Speech with another projector than BLIP-2's Q-Former")
    read = config.integer("encoder_hidden_size", default=1408)
    if stated and read != stated:
        config.fail("encoder_hidden_size", f"encoder_hidden_size = {read} is not the {stated} of joined layers")
    reader = qformer(config, read)
    query = ParameterTensor("projector.query", (1, window // rate, reader.width), "projector")
    last = linear("projector.linear", outputs, reader.width, "projector", "none", bias=True)
    return (OtherTower(part="projector", blocks=(), tensors=(query, *reader.tensors("projector.qformer."), *last)),)


def _conv(name: str, outputs: int, inputs: int) -> tuple[ParameterTensor, ...]:
    weight = ParameterTensor(name + ".weight", (outputs, inputs, 1), "audio")
    return weight, ParameterTensor(name + ".bias", (outputs,), "audio")
