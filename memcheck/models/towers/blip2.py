"""BLIP-2 and InstructBLIP: a ViT with a class token, and a Q-Former whose learned rows read each picture's.

modeling_blip_2.py, modeling_instructblip.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import SIGLIP, norm_pair, split_width, square, tower_mlp
from memcheck.models.towers.qformer import QFormer, instructed, qformer
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.models.vision import Perceiver, TowerAttention, Vision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: blip-2`` around a decoder. Every picture becomes ``num_query_tokens`` image tokens."""
    if around.language.model_type != "opt":
        name = around.language.model_type
        around.outer.fail("text_config", f"memcheck reads no BLIP-2 around {name}", "OPT is read")
    return _read(config, around, "blip2", qformer)


def read_instruct(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: instructblip`` around a decoder: the Q-Former reads the text of each picture, too."""
    if around.language.model_type != "llama":
        name = around.language.model_type
        around.outer.fail("text_config", f"memcheck reads no InstructBLIP around {name}", "Llama is read")
    around.outer.note("the Q-Former is assumed to read as many tokens of text as the language model, up to its places")
    return _read(config, around, "instructblip", instructed)


def _read(
    config: ConfigReader, around: AroundTower, kind: str, reads: Callable[[ConfigReader, int], QFormer]
) -> Vision:
    outer, language = around.outer, around.language
    outer.ignore("initializer_factor", "initializer_range", "image_text_hidden_size", "use_decoder_only_language_model")
    outer.ignore("num_query_tokens", "image_token_index")
    width = config.integer("hidden_size", default=1408)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=6144)
    depth = config.integer("num_hidden_layers", default=39, maximum=MAX_LAYERS)
    side, patch = square(config, "image_size", 224), square(config, "patch_size", 14)
    bias = config.flag("qkv_bias", default=True)
    config.ignore("model_type", "layer_norm_eps", "initializer_range", "initializer_factor")
    config.ignore("projection_dim", "num_channels")
    for key in ("attention_dropout", "dropout"):
        if config.dropout(key):
            config.fail(key, f"{key} in a vision tower has no memory model", "it is 0 in released files")
    queries = outer.integer("num_query_tokens", default=32)
    section = outer.section("qformer_config")
    reader = reads(section, width)
    mixer = TowerAttention(
        heads=heads,
        head_dim=width // heads,
        kind="packed-selected",
        softmax_fp32=False,
        tensors=(
            *linear("self_attn.qkv", 3 * width, width, "attention", "column", bias=bias),
            *linear("self_attn.projection", width, width, "attention", "row", bias=True),
        ),
        bias=bias,
    )
    block = Block(
        mixer=mixer,
        mlp=tower_mlp(width, inner, config.activation(default="gelu"), SIGLIP.mlp),
        input_norm=Norm("layernorm", width, bias=True, name=SIGLIP.norms[0]),
        mlp_norm=Norm("layernorm", width, bias=True, name=SIGLIP.norms[1]),
    )
    rows = (side // patch) ** 2 + 1
    return Vision(
        kind=kind,
        hidden=width,
        blocks=((block, depth),),
        channels=3 * patch * patch,
        merge=1,
        outputs=language.hidden_size,
        stem=(
            ParameterTensor("embeddings.class_embedding", (1, 1, width), "vision"),
            ParameterTensor("embeddings.patch_embedding.weight", (width, 3, patch, patch), "vision"),
            ParameterTensor("embeddings.patch_embedding.bias", (width,), "vision"),
            ParameterTensor("embeddings.position_embedding", (1, rows, width), "position"),
        ),
        projector=(
            ParameterTensor("query_tokens", (1, queries, reader.width), "projector"),
            *reader.tensors("qformer."),
            *linear("language_projection", language.hidden_size, reader.width, "projector", "none", bias=True),
        ),
        hooked=False,
        closing=norm_pair("post_layernorm", width),
        perceiver=Perceiver(
            latents=queries,
            heads=reader.heads,
            kv_heads=reader.heads,
            head_dim=reader.width // reader.heads,
            activation=section.activation(default="gelu"),
            dropout=section.dropout("hidden_dropout_prob", default=0.1),
            words=reader.words,
        ),
        tile=rows,
        tile_tokens=queries,
        classes=1,
        patch=patch,
        processor="square:see",
        wraps=True,
        single=reader.words > 0,
        heads=heads,
        path="vision_model",
        projector_path="",
    )
