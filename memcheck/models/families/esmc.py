"""ESM C, language models of proteins (modeling_esmc.py): Llama's layers with LayerNorms, where all see each other."""

from __future__ import annotations

from memcheck.models.families import llama
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import layer_norm
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Norm, Paths, Pooling

HEAD = "lm_head"


def read(config: ConfigReader) -> Architecture:
    """``model_type: esmc``: with a head for masked residues, which is never tied; sums are scaled by the depth."""
    config.ignore("mask_token_id", "tie_word_embeddings")
    found = llama.read(config)
    size = read_sizes(config)
    h = size.hidden
    if size.kv_heads != size.heads:
        config.fail("num_key_value_heads", f"{size.kv_heads} key-value heads: the class has {size.heads}, ungrouped")

    def normed(block: Block) -> Block:
        a = block.mixer
        if not isinstance(a, Attention):
            return block
        attention = grouped_attention(
            size,
            qkv_bias=a.qkv_bias,
            out_bias=a.out_bias,
            query_norm=Norm("layernorm", h, name="self_attn.q_norm"),
            key_norm=Norm("layernorm", h, name="self_attn.k_norm"),
            dropout=a.dropout,
            bidirectional=True,
            softmax_fp32=False,
        )
        return block._replace(
            mixer=attention,
            input_norm=layer_norm(h, "input_layernorm"),
            mlp_norm=layer_norm(h, "post_attention_layernorm"),
            residual_scale=True,
            named_output=True,
        )

    return found._replace(
        tie_word_embeddings=False,
        blocks=tuple((normed(block), count) for block, count in found.blocks),
        final_norm=layer_norm(h, "esmc.norm", bias=False),
        embeddings_apart=True,  # one variable has the looked-up rows, then each layer's
        head_bias=True,
        head_transform="gelu",
        head_tensors=(
            *linear(f"{HEAD}.dense", h, h, "head", "none", bias=True),
            *norm_tensors(layer_norm(h, f"{HEAD}.layer_norm")),
        ),
        pooling=Pooling(
            "tanh",
            linear("classifier.dense", h, h, "head", "none", bias=True),
            dropout=config.dropout("classifier_dropout", default=0.1),
            dropout_before=True,
        ),
        paths=Paths(layers="esmc.layers", embedding="esmc.embed_tokens", head=f"{HEAD}.decoder"),
    )
