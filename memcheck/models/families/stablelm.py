"""StableLM 3B and 2 (modeling_stablelm.py): LayerNorm, a quarter of each head rotated."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    layer_norm,
    read_sizes,
    vector,
)
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, LayerVariables, Norm


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: stablelm``: LayerNorm, a gated MLP, and by default a quarter of each head
    rotated.
    """
    size = read_sizes(config, kv_heads="required", head_dim_key=False)
    hidden = size.hidden
    attention = grouped_attention(
        size,
        qkv_bias=config.flag("use_qkv_bias"),
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.25, "rope_pct")),
        dropout=config.dropout("attention_dropout"),
        rotation=HALF._replace(named=True),
    )
    if config.flag("qk_layernorm"):
        attention = _with_head_norms(attention, size)
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), config.activation())
    parallel = config.flag("use_parallel_residual")
    block = Block(
        mixer=attention,
        mlp=mlp._replace(dropout=config.dropout("hidden_dropout")),
        input_norm=layer_norm(hidden, "input_layernorm"),
        mlp_norm=None if parallel else layer_norm(hidden, "post_attention_layernorm"),
        parallel=parallel,
        lives_to_forward_end=LayerVariables(input_norm_output=True, mixer_output=True, mlp_input=False),
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=layer_norm(hidden, "model.norm"),
        rotary_dim=attention.rotary_dim,
    )


def _with_head_norms(attention: Attention, size: StackDimensions) -> Attention:
    """Return the attention with one LayerNorm module per head of queries and keys, each with a weight and no bias."""
    head_dim = size.head_dim
    norms = {which: Norm("layernorm", head_dim, rows=n) for which, n in (("q", size.heads), ("k", size.kv_heads))}
    weights = tuple(
        vector(f"self_attn.{which}_layernorm.norms.{i}.weight", head_dim, "norm")
        for which, norm in norms.items()
        for i in range(norm.rows)
    )
    return attention._replace(query_norm=norms["q"], key_norm=norms["k"], tensors=attention.tensors + weights)
