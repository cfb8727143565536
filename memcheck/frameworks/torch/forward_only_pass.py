"""The forward pass without gradients that a micro-batch runs in addition to its own: what it holds."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import ITEM_BYTES, Tape, Value, rounded, rounded_bytes
from memcheck.frameworks.forward_only_pass import ForwardOnlyHead, ForwardOnlyPass
from memcheck.frameworks.layers import layers_of, model_states_of
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group, all_gather_dtype, fsdp_group, is_zero3, uses_fsdp
from memcheck.frameworks.torch.model_buffers import masks_of
from memcheck.frameworks.torch.rank_tensors import block_tensors, checked_architecture, setting_placement
from memcheck.frameworks.torch.reference_models import alone, by_layer, gathered_by_engine, gathered_whole, is_wrapped
from memcheck.frameworks.torch.resident import shard_placement
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block


def forward_only_pass(job: TrainingJob, architecture: Architecture, base: Setting) -> ForwardOnlyPass | None:
    """The forward pass without gradients that each micro-batch runs in addition to its own; None where
    there is none.
    """
    objective = job.objective
    if not objective.forward_only_pass:
        return None
    companion = next(iter(job.auxiliary_models), None)
    other = companion.architecture if companion is not None else architecture
    own = companion is None
    dtype = job.recipe.compute if not job.recipe.autocast else (companion.dtype if companion else job.recipe.params)
    trained = companion is not None
    setting = base._replace(
        hidden=other.hidden_size,
        param_dtype=dtype,
        compute_dtype=dtype,
        adapter=None,
        trained=trained,
        frozen_modules=(),
        needs_input_gradient=False,
        external_input=False,
        has_grad=True,
        liger=base.liger if own else None,
    )
    layers, casts = passing(checked_architecture(alone(job, companion), other) if companion else other, setting)
    gathered = 0
    if uses_fsdp(job):
        wrapped = companion is not None and is_wrapped(job, companion)
        gathered = gathered_whole(job, companion) if companion is not None and wrapped else 0
        if companion is not None and wrapped and by_layer(job):
            whole = base._replace(trained=True, frozen_modules=(), adapter=None, hidden=other.hidden_size)
            found = _fullest(alone(job, companion), other, whole)
            gathered = found.gathered + found.flat
            # as it is copied out the flat buffer of the layer before is there, too, and nothing of the layer itself
            between = passing(other._replace(blocks=()), setting)[0]
            between += rounded_bytes((setting.batch * setting.sequence, other.hidden_size), dtype)
            layers = max(layers, found.flat + between)
        layers += layer_gathers(job, architecture, base) if own else 0
    elif companion is not None and is_zero3(job):
        gathered = gathered_by_engine(job, companion)
    head = ForwardOnlyHead(
        vocab=other.vocab_size,
        hidden=other.hidden_size,
        bias=other.head_bias,
        final_norm=other.final_norm,
        softcap=other.final_softcap,
        scaled=other.logit_scale,
        dtype=dtype,
        trained=trained,
    )
    states = (other.num_layers + 1) * rounded_bytes((setting.batch * setting.sequence, other.hidden_size), dtype)
    passed = ForwardOnlyPass(head=head, setting=setting, layers=layers, casts=casts, gathered=gathered, states=states)
    if other.vision is None:
        return passed
    from memcheck.frameworks.torch.tower_units import seen_again

    highest, seen, given_out = seen_again(job, other, setting)
    return passed._replace(layers=max(layers, highest - seen), seen=seen, given_out=given_out)


def layer_gathers(job: TrainingJob, architecture: Architecture, base: Setting) -> int:
    """A layer's parameters, their flat buffer and that of the layer before: the root's are gathered anyway."""
    found = _fullest(job, architecture, base)
    return found.gathered + 2 * found.flat


def _fullest(job: TrainingJob, architecture: Architecture, base: Setting) -> Group:
    """The group of the layer that gathers most."""
    most, leaves = NO_GROUP, job.framework.fsdp2.leaves_whole_experts
    for block, _ in architecture.blocks:
        divided = [
            shard_placement(job, t, job.layout.shard_group) for t in block_tensors(block, setting_placement(base))
        ]
        casts, waits = all_gather_dtype(job) is not None, job.recipe.reduce
        found = fsdp_group(
            divided, job.recipe, casts_every_tensor=casts, accumulation_dtype=waits, leaves_whole_experts=leaves
        )
        most = max(most, found, key=lambda one: one.gathered + 2 * one.flat)
    return most


@lru_cache(maxsize=512)
def passing(architecture: Architecture, setting: Setting) -> tuple[int, int]:
    """A forward pass through all layers without gradients: its highest point, and autocast's copies at its end."""
    tokens, a = setting.batch * setting.sequence, architecture
    stream = rounded_bytes((tokens, a.hidden_size), setting.param_dtype)
    around = model_states_of(setting.style).rotary_tables(a, setting)
    around += stream if setting.style.modeling_files else 0  # `inputs_embeds`
    around += masks_of(a, setting)
    most = casts = 0
    for block, times in a.blocks:
        high, more = _layer(block, setting)
        most = max(most, casts + (times - 1) * more + high)
        casts += times * more
    return most + around, casts


@lru_cache(maxsize=1024)
def _layer(block: Block, setting: Setting) -> tuple[int, int]:
    tape = Tape(autocast=setting.autocast_dtype)
    tape.grad_enabled = False
    ctx = Context(tape, setting)
    shape = (ctx.residual_tokens * setting.streams, ctx.hidden)
    x = Value(tape.new(shape, setting.param_dtype, "block input"), shape, setting.param_dtype)
    forward, _ = layers_of(setting.style).recomputing(block, "none")
    y = forward(ctx, x)
    peak = tape.peak
    x.storage = y.storage = None
    for value in (*ctx.extra_outputs, *ctx.unused_outputs, *ctx.attention_locals):
        value.storage = None
    casts = sum(value.storage.bytes for value in tape.casts.values() if value.storage is not None)
    return peak, casts


def hidden_states(job: TrainingJob, architecture: Architecture, tokens: int, dtype: str) -> int:
    """Bytes of the hidden states that TRL up to 0.28 asks for: the embedding's rows and every layer's output."""
    if job.objective.code != "trl-0.24":
        return 0
    return (architecture.num_layers + 1) * rounded(tokens * architecture.hidden_size * ITEM_BYTES[dtype])
