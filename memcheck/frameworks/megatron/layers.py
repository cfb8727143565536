"""Megatron's transformer layer, with what selective recompute takes out of it.

Source: Megatron-core ``transformer/transformer_layer.py`` (TransformerLayer), ``transformer_block.py``
(_checkpointed_forward), ``models/gpt/gpt_layer_specs.py`` (which norms are fused into the linear layer after them).
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.attention import hidden_dropout, latent_attention, self_attention
from memcheck.frameworks.megatron.delta_net import delta_net
from memcheck.frameworks.megatron.fusions import bias_dropout_add, mlp
from memcheck.frameworks.megatron.linear import Projection, norm, uses_te
from memcheck.frameworks.megatron.moe import moe
from memcheck.frameworks.megatron.recompute import Discarded, checkpoint
from memcheck.models.types import Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm

SELECTIVE_DEFAULT = ("core_attn",)
"""``recompute_modules`` when the plan asks for selective recompute without naming modules (transformer_config.py)."""


def recompute_modules(setting: Setting) -> tuple[str, ...]:
    """Modules that selective recompute runs again; empty unless ``recompute_granularity`` is selective."""
    if setting.option("recompute_granularity") != "selective":
        return ()
    named = setting.option("recompute_modules")
    if isinstance(named, str):
        return tuple(named.replace(",", " ").split())
    return tuple(str(n) for n in named) if isinstance(named, (list, tuple)) and named else SELECTIVE_DEFAULT


def megatron_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run one layer: ``hidden_states = layer(hidden_states)``, [tokens, hidden] of this rank."""
    modules = recompute_modules(ctx.setting)
    x = _attention_half(ctx, block, x, modules)
    return _mlp_half(ctx, block, x, modules)


def _fused_norm(ctx: Context, block: Block, half: str) -> Norm | None:
    """Return the norm that TE fuses with the linear layer after it; None: the norm is a module by itself.

    ``half``: ``attention`` or ``mlp``, whose input norm is asked for.
    """
    if not uses_te(ctx.setting):
        return None
    if half == "attention":
        return block.input_norm if isinstance(block.mixer, (Attention, Mixer)) else None
    return block.mlp_norm if isinstance(block.mlp, Mlp) else None


def _attention_half(ctx: Context, block: Block, x: Value, modules: tuple[str, ...]) -> Value:
    """Compute the attention half of a layer: input norm, mixer, output norm, and residual with dropout.

    ``x``: [tokens, hidden]. ``modules``: ``recompute_modules`` of selective recompute.
    """
    mixer = block.mixer
    if mixer is None:
        return x
    dropout = hidden_dropout(ctx, block.dropout)
    fused = _fused_norm(ctx, block, "attention")
    normed, dropped = (x, None) if fused is not None else _own_norm(ctx, block.input_norm, x, modules)
    core = "core_attn" in modules
    if isinstance(mixer, Attention):
        out, proj = self_attention(ctx, mixer, normed, fused, recompute=core)
    elif isinstance(mixer, LatentAttention):
        out, proj = latent_attention(ctx, mixer, normed, recompute=core, up_proj="mla_up_proj" in modules)
    elif isinstance(mixer, Mixer) and mixer.kind == "gated-delta-net":
        out, proj = delta_net(ctx, mixer, normed, fused, modules)
    else:
        raise UnsupportedError(f"Megatron's {mixer.kind} layers have no memory model")
    del normed
    if dropped is not None:
        out = dropped.discard(out)
    out = norm(ctx, block.mixer_output_norm, out, "post_attention_norm")
    return bias_dropout_add(ctx, out, proj.bias, x, dropout)


def _own_norm(ctx: Context, spec: Norm | None, x: Value, modules: tuple[str, ...]) -> tuple[Value, Discarded | None]:
    """Run a norm that is not fused with a linear layer, and return its output.

    ``modules``: Megatron's ``recompute_modules``. If ``layernorm`` is among them, the output is dropped after its use
    and recomputed in backward. The second result is the object that drops it; None: the output is kept.
    """
    if "layernorm" not in modules or spec is None:
        return norm(ctx, spec, x), None
    discarded = Discarded(ctx)
    (normed,) = discarded.run(lambda ctx, inputs: (norm(ctx, spec, inputs[0]),), (x,))
    return normed, discarded


def _mlp_half(ctx: Context, block: Block, x: Value, modules: tuple[str, ...]) -> Value:
    """Compute the feed-forward half of a layer: norm, MLP or experts, output norm, and residual with dropout.

    ``x``: [tokens, hidden]. ``modules``: ``recompute_modules`` of selective recompute.
    """
    feed_forward = block.mlp
    if feed_forward is None:
        return x
    dropout = hidden_dropout(ctx, block.dropout)
    fused = _fused_norm(ctx, block, "mlp")
    normed, dropped = (x, None) if fused is not None else _own_norm(ctx, block.mlp_norm, x, modules)
    if isinstance(feed_forward, Mlp):
        projections: list[Projection] = []

        def forward(ctx: Context, t: tuple[Value, ...]) -> Value:
            out, fc2 = mlp(ctx, feed_forward, t[0], fused)
            projections.append(fc2)
            return out

        out = checkpoint(ctx, forward, (normed,)) if "mlp" in modules else forward(ctx, (normed,))
        bias = projections[0].bias
    else:
        out, bias = _experts(ctx, feed_forward, normed, modules), None
    del normed
    if dropped is not None:
        out = dropped.discard(out)
    out = norm(ctx, block.mlp_output_norm, out, "post_mlp_norm")
    return bias_dropout_add(ctx, out, bias, x, dropout)


def _experts(ctx: Context, layer: Moe, hidden: Value, modules: tuple[str, ...]) -> Value:
    """Compute the MoE layer on ``hidden`` [tokens, hidden], as a checkpoint if ``moe`` is in ``recompute_modules``."""
    if "moe" in modules:
        return checkpoint(ctx, lambda c, t: moe(c, layer, t[0], modules), (hidden,), routed=True)
    return moe(ctx, layer, hidden, modules)


def megatron_layers(ctx: Context, blocks: tuple[Block, ...], x: Value, *, recompute: bool) -> Value:
    """Run consecutive layers as one unit: a checkpoint of ``recompute_num_layers`` layers, or a single layer."""
    if not recompute:
        for block in blocks:
            x = megatron_block(ctx, block, x)
        return x

    def forward(ctx: Context, t: tuple[Value, ...]) -> Value:
        """Run the unit's layers one after the other."""
        y = t[0]
        for block in blocks:
            y = megatron_block(ctx, block, y)
        return y

    distribute = bool(ctx.setting.option("distribute_saved_activations"))
    routed = any(isinstance(block.mlp, Moe) for block in blocks)
    return checkpoint(ctx, forward, (x,), distribute=distribute, routed=routed)
