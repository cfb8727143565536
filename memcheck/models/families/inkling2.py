"""Inkling 2, text (modeling_inkling2.py): layers that weigh the streams of those before them, clipped attention with a
sink and a gate of every token, short convolutions, experts with soft bounds.
"""

from __future__ import annotations

from memcheck.models.attention_types import Relative
from memcheck.models.families.inkling import FULL, NAMES, PERIOD, SLIDING, windowed_sizes
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import routed
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, ParameterTensor, Sources

NORM = "rmsnorm-fp32-weight"
WIDE = (".conv1d.", "mlp.gate.", "attention_input", "mlp_input", "final_input")
"""``_keep_in_fp32_modules_strict`` of the class."""
UNCOUNTED = (
    "a GPU's kernel takes a workspace of at least 64 x hidden_size fp32 elements a token in the backward of each "
    "mixture of streams, three times that under autocast, for that moment (kernel_backward.h, workspace_size): it is "
    "not counted"
)


def read(config: ConfigReader) -> Architecture:
    """``model_type: inkling2_text``. Every layer is routed."""
    config.ignore("log_scaling_alpha", "log_scaling_n_floor", "route_scale", "number_of_conv_states")
    config.ignore("qk_l2_clip_threshold", "rel_l2_clip_threshold", "mlp_gate_softcap", "mlp_up_softcap")
    config.ignore("final_logit_softcapping", "embedding_multiplier")
    size = read_sizes(config, NAMES, kv_heads="required", head_dim=128)
    h, layers = size.hidden, size.layers
    kernel = config.integer("conv_kernel_size", "sconv_kernel_size", default=4)
    width, extent = config.integer("d_rel", default=16), config.integer("rel_extent", default=1024)
    window = config.integer("sliding_window_size", "sliding_window", default=1024)
    narrow = windowed_sizes(config, size, (48, 8))
    full = _attention(config, size, Relative(width, extent, kernel, scaled=True, dynamic=True))
    sliding = _attention(config, narrow, Relative(width, window, kernel))._replace(window=window)
    moe = routed(
        h,
        (config.integer("n_routed_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size", "intermediate_size"),
        config.activation(),
        router="sigmoid-even",
        router_fp32=True,
        scores_fp32=True,
        correction_bias=True,
        clamp="tanh",
        experts_first=True,
    )
    if config.text("scoring_func", default="sigmoid") != "sigmoid":
        config.fail("scoring_func", "memcheck knows sigmoid scores of Inkling 2's experts alone", "write sigmoid")
    if config.flag("tie_word_embeddings"):
        config.fail("tie_word_embeddings", "the class has an embedding and a head of their own", "write false")
    config.note(UNCOUNTED)
    every = config.integer("n_layers_per_attn_res_block", default=6)
    types = _types(config, layers)

    def make(kind: tuple[bool, Sources]) -> Block:
        return _block(h, kernel, full if kind[0] else sliding, kind[1])._replace(mlp=moe)

    kept = config.integer("unpadded_vocab_size", default=size.vocab, null=size.vocab)
    return decoder(
        config,
        size,
        stack(zip(types, _sources(layers, every), strict=True), make),
        tied=False,
        final_norm=rms_norm(h, "model.norm", NORM),
        rotary_dim=0,
        embedding_norm=rms_norm(h, "model.embed_tokens.embed_norm", NORM),
        table_norm=True,
        logits_fp32=True,
        final_softcap=True,
        kept_words=kept if kept < size.vocab else 0,
        mask_windows=(None, window),
        head_tensors=(ParameterTensor("model.final_input.query", (h,), "mixer"),),
        kept_wide=WIDE,
    )


def _types(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers see every token: those of ``layer_types``, else every sixth."""
    types = layer_types(config, layers, lambda i: SLIDING if (i + 1) % PERIOD else FULL, (SLIDING, FULL))
    return tuple(t == FULL for t in types)


def _sources(layers: int, every: int) -> list[Sources]:
    """What each layer is given: in front of every ``every``-th layer the stream becomes one of the sources."""
    return [
        Sources(
            given=-(-i // every),
            first=i > 0 and (i - 1) % every == 0,
            adds=i % every == 0,
            last=i == layers - 1,
        )
        for i in range(layers)
    ]


def _block(hidden: int, kernel: int, mixer: Attention, sources: Sources) -> Block:
    dynamic = mixer.relative is not None and mixer.relative.dynamic
    names = ("q_input_layernorm", "k_input_layernorm", "v_input_layernorm") if dynamic else ("input_layernorm",)
    queries = (len(names), hidden) if dynamic else (hidden,)
    first = (ParameterTensor("attention_input.query", queries, "mixer"),) if sources.given else ()
    return Block(
        mixer=mixer,
        mlp=None,
        input_norm=rms_norm(hidden, names[0], NORM),
        mlp_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
        extra_tensors=(
            *first,
            ParameterTensor("mlp_input.query", (hidden,), "mixer"),
            *(ParameterTensor(f"{name}.weight", (hidden,), "norm") for name in names[1:]),
            *(
                ParameterTensor(f"post_{name}_convolution.conv1d.weight", (hidden, 1, kernel), "mixer")
                for name in ("attention", "mlp")
            ),
        ),
        sources=sources,
    )


def _attention(config: ConfigReader, size: StackDimensions, relative: Relative) -> Attention:
    keys, a = size.kv_heads * size.head_dim, "self_attn."
    convolutions: tuple[ParameterTensor, ...] = ()
    for which in ("k", "v"):
        module = f"{a}{which}_sconv."
        if relative.dynamic:
            convolutions += (ParameterTensor(module + "static_weight", (relative.kernel, keys), "attention"),)
            taps = size.kv_heads * relative.kernel
            convolutions += linear(module + "weight_proj", taps, size.hidden, "attention", "none")
        else:
            convolutions += (ParameterTensor(module + "conv1d.weight", (keys, 1, relative.kernel), "attention"),)
    return grouped_attention(
        size,
        rotary_dim=0,
        sdpa=False,
        flash=False,
        dropout=config.dropout("attention_dropout"),
        relative=relative,
        tensors=(
            *linear(a + "r_proj", size.heads * relative.width, size.hidden, "attention", "none"),
            *convolutions,
            ParameterTensor(a + "rel_logits_proj.proj", (relative.width, relative.extent), "attention"),
            *linear(a + "gate_proj", size.heads * size.head_dim, size.hidden, "attention", "none"),
            *linear(a + "sink_proj", size.heads, size.hidden, "attention", "none"),
            ParameterTensor(a + "q_l2_clip.scale", (size.heads, size.head_dim), "attention"),
            ParameterTensor(a + "rel_l2_clip.scale", (size.heads, relative.width), "attention"),
        ),
    )
