"""JetMoE (modeling_jetmoe.py): experts that make queries and read outputs of attention, and feed-forward experts."""

from __future__ import annotations

from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import StackDimensions, check_groups, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Moe, ParameterTensor


def read(config: ConfigReader) -> Architecture:
    """``model_type: jetmoe``. A token has as many sets of query heads as experts, each of ``num_key_value_heads``."""
    config.ignore("aux_loss_coef", "output_router_logits", "rms_norm_eps")
    chosen = config.integer("num_experts_per_tok", "moe_top_k", default=2)
    kv_heads = config.integer("num_key_value_heads", default=16)
    stated = {**config.config, "num_attention_heads": kv_heads * chosen}
    if config.integer("num_attention_heads", default=kv_heads * chosen) != kv_heads * chosen:
        config.fail("num_attention_heads", f"num_attention_heads is {chosen} times num_key_value_heads")
    head_dim = config.integer("kv_channels", "head_dim", default=128)
    inner = ConfigReader({**stated, "head_dim": head_dim}, config.model_type)
    size = read_sizes(inner, head_dim=head_dim)
    config.ignore("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")
    check_groups(config, size.heads, kv_heads, "num_key_value_heads")
    experts = config.integer("num_local_experts", "moe_num_experts", default=8)
    if chosen > experts:
        config.fail("num_experts_per_tok", f"a token cannot have {chosen} of {experts} experts")
    width = config.integer("intermediate_size", "ffn_hidden_size", default=5632)
    activation = config.activation("activation_function", "hidden_act")
    block = pre_norm_block(
        size.hidden, _attention(config, size, experts), _experts(size.hidden, (experts, chosen), width, activation)
    )
    return decoder(config, size, ((block, size.layers),), tied=True, checkpointable=False)


def _attention(config: ConfigReader, size: StackDimensions, experts: int) -> Attention:
    h, width, module = size.hidden, size.kv_heads * size.head_dim, "self_attention."
    return Attention(
        size.heads,
        size.kv_heads,
        size.head_dim,
        rotary_dim=size.head_dim,
        dropout=config.dropout("attention_dropout"),
        choices=experts,
        tensors=(
            ParameterTensor(module + "experts.bias", (h,), "attention"),
            ParameterTensor(module + "experts.input_linear.weight", (experts, width, h), "attention"),
            ParameterTensor(module + "experts.output_linear.weight", (experts, h, width), "attention"),
            *linear(module + "experts.router.layer", experts, h, "router", "none"),
            *linear(module + "kv_proj", 2 * width, h, "attention", "none"),
        ),
    )


def _experts(hidden: int, choice: tuple[int, int], width: int, activation: str) -> Moe:
    experts, chosen = choice
    tensors = (
        ParameterTensor("mlp.bias", (hidden,), "mlp"),
        ParameterTensor("mlp.input_linear.weight", (experts, 2 * width, hidden), "experts"),
        ParameterTensor("mlp.output_linear.weight", (experts, hidden, width), "experts"),
        *linear("mlp.router.layer", experts, hidden, "router", "none"),
    )
    return Moe(
        experts, chosen, width, gated=True, activation=activation, tensors=tensors, router="softmax-topk", split=True
    )
