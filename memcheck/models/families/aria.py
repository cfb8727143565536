"""Aria's language model (modeling_aria.py): Llama's attention, transposed experts, a softmax over the chosen logits."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_tensors, pre_norm_block, read_attention, read_sizes, stacked_experts
from memcheck.models.module_types import SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Moe, ParameterTensor


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: aria_text``. Routed experts are SiLU-gated whatever ``hidden_act`` says of
    the shared ones.
    """
    size = read_sizes(config)
    config.ignore("pretraining_tp")
    config.refuse("mlp_bias", "mlp_bias of Aria's shared experts is not modelled: no released one has it")
    if config.activation() != "silu":
        config.fail("hidden_act", "shared experts of another activation than the routed ones are not modelled")
    attention = read_attention(config, size)
    experts, width = config.integer("moe_num_experts", default=8), config.integer("intermediate_size")
    shared = width * config.integer("moe_num_shared_experts", default=2)
    moe = Moe(
        experts,
        config.integer("moe_topk", default=2),
        width,
        gated=True,
        activation="silu",
        router="softmax-chosen",
        shared=SharedExperts(shared, gate=False, runs_first=False),
        tensors=(
            ParameterTensor("mlp.router.weight", (experts, size.hidden), "router"),
            *stacked_experts("mlp.experts", experts, size.hidden, width, transposed=True),
            *gated_tensors("mlp.shared_experts", size.hidden, shared, "shared_experts"),
        ),
        bias=False,
    )
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, moe), size.layers),), tied=False)
