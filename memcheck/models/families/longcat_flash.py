"""LongCat Flash (modeling_longcat_flash.py): two latent attentions and two dense networks per layer, and experts in
parallel, some of which hand tokens on as they are.
"""

from __future__ import annotations

from memcheck.models.decoder import Names, decoder, gated_tensors, rms_norm
from memcheck.models.families.deepseek import latent_attention, latent_dimensions, note_mtp_layers
from memcheck.models.module_types import NORMALISED_SCORES, IdentityMoe, ScaledLatentAttention, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, DualAttentionBlock, Fp32Params, LatentAttention, Moe, ParameterTensor

NAMES = Names(layers=("num_layers",))


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: longcat_flash``.

    Two latent attentions and two dense MLPs in each layer, with experts parallel to them.
    """
    size = latent_dimensions(config, NAMES)
    hidden = size.hidden
    config.expect(
        "num_hidden_layers", 2 * size.layers, "num_hidden_layers counts attentions, two for each of num_layers"
    )
    config.ignore("routed_scaling_factor", "output_router_logits", "mla_scale_q_lora", "mla_scale_kv_lora")
    config.ignore("attention_method", "zero_expert_type", "norm_topk_prob", "router_dtype", "topk_method")
    attention = ScaledLatentAttention(*latent_attention(config, size))
    if attention.q_lora_rank is None:
        config.fail("q_lora_rank", "the class has low-rank queries alone", "state their rank")
    first, second = (_numbered(attention, i) for i in range(2))
    block = DualAttentionBlock(
        mixer=first,
        mlp=_experts(config, hidden),
        input_norm=rms_norm(hidden, "input_layernorm.0"),
        mlp_norm=rms_norm(hidden, "post_attention_layernorm.0"),
        mixer_output_norm=rms_norm(hidden, "input_layernorm.1"),
        mlp_output_norm=rms_norm(hidden, "post_attention_layernorm.1"),
        second_mixer=second,
    )
    note_mtp_layers(config, ("num_nextn_predict_layers", "mtp_num_layers"))
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        rotary_dim=attention.qk_rope_head_dim,
        fp32_params=Fp32Params(always=(), of_fp16=("classifier.weight",)),
    )


def _numbered(attention: LatentAttention, index: int) -> LatentAttention:
    """Return the attention with the module path of number ``index`` in the layer's ``self_attn`` list."""
    tensors = attention.tensors
    return attention._replace(
        tensors=tuple(t._replace(name=t.name.replace("self_attn.", f"self_attn.{index}.", 1)) for t in tensors)
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build a layer's routed experts, with its two dense MLPs in the place of shared experts.

    ``zero_expert_num`` further experts return their input unchanged (identity experts).
    """
    experts = config.integer("n_routed_experts", "num_local_experts")
    handed = config.integer("zero_expert_num", default=256, null=0, minimum=0)
    width = config.integer("expert_ffn_hidden_size", "moe_intermediate_size")
    dense = config.integer("ffn_hidden_size", "intermediate_size")
    config.refuse("router_bias", "the class's forward reads no bias of the router", "write false")
    tensors = (
        ParameterTensor("mlp.experts.gate_up_proj", (experts + handed, 2 * width, hidden), "experts", shard="column"),
        ParameterTensor("mlp.experts.down_proj", (experts, hidden, width), "experts", shard="row"),
        ParameterTensor("mlp.router.classifier.weight", (experts + handed, hidden), "router"),
        *gated_tensors("mlps.0", hidden, dense, "shared_experts"),
        *gated_tensors("mlps.1", hidden, dense, "shared_experts"),
    )
    return IdentityMoe(
        experts + handed,
        config.integer("moe_topk", "num_experts_per_tok"),
        width,
        gated=True,
        activation=config.activation(),
        tensors=tensors,
        router="softmax-gather",
        routing=NORMALISED_SCORES._replace(input_fp32=True, scores_fp32=True, normalised=False),
        shared=SharedExperts(2 * dense, gate=False, runs_first=False),
        looped=True,
        bias=False,
    )
