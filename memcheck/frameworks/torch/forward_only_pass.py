"""The forward pass without gradients that a micro-batch runs in addition to its own: what it holds."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import ITEM_BYTES, Tape, Value, rounded, rounded_bytes
from memcheck.frameworks.forward_only_pass import ForwardOnlyHead, ForwardOnlyPass
from memcheck.frameworks.registry import layers_of
from memcheck.frameworks.torch.data_parallel import NO_GROUP, Group, all_gather_dtype, fsdp_group, is_zero3, uses_fsdp
from memcheck.frameworks.torch.rank_tensors import block_tensors, checked_architecture, setting_placement
from memcheck.frameworks.torch.reference_models import alone, by_layer, gathered_by_engine, gathered_whole, is_wrapped
from memcheck.frameworks.torch.resident import shard_placement
from memcheck.frameworks.torch.units import masks_of
from memcheck.job.types import Companion, TrainingJob
from memcheck.models.types import Architecture, Attention, Block
from memcheck.record import Record


def forward_only_pass(job: TrainingJob, architecture: Architecture, base: Setting) -> ForwardOnlyPass | None:
    """Return what an additional forward pass without gradients allocates in each micro-batch; None if there is none.

    Its model is a reference or teacher (``auxiliary_models``), or the trained model with its adapters disabled.
    ``base``: the setting of the trained model.
    """
    if not job.objective.forward_only_pass:
        return None
    if job.auxiliary_models:
        return _of_companion(job, job.auxiliary_models[0], base)
    return _of_trained_model(job, architecture, base)


def _of_trained_model(job: TrainingJob, architecture: Architecture, base: Setting) -> ForwardOnlyPass:
    """Return what a forward of the trained model with disabled adapters allocates."""
    dtype = job.recipe.params if job.recipe.autocast else job.recipe.compute
    setting = _pass_setting(base, architecture, dtype, trained=False)._replace(liger=base.liger)
    layers = layers_without_grad(architecture, setting)
    if uses_fsdp(job):
        layers = layers._replace(peak=layers.peak + layer_gathers(job, architecture, base))
    return _with_outputs(job, architecture, setting, layers)


def _of_companion(job: TrainingJob, companion: Companion, base: Setting) -> ForwardOnlyPass:
    """Return what a forward of a reference or teacher model allocates."""
    architecture = companion.architecture
    dtype = companion.dtype if job.recipe.autocast else job.recipe.compute
    setting = _pass_setting(base, architecture, dtype, trained=True)
    companion_job = alone(job, companion)
    cache = _keys_and_values(architecture, setting) if job.objective.reference_caches else 0
    layers = layers_without_grad(checked_architecture(companion_job, architecture), setting)
    gathered = 0
    if is_wrapped(job, companion) and by_layer(job):
        largest_group = _fullest(companion_job, architecture, setting)
        gathered = largest_group.unsharded_params + largest_group.all_gather_output
        # a layer is copied out of its flat buffer while the previous layer's flat buffer is live
        layers = layers._replace(
            peak=max(layers.peak, largest_group.all_gather_output + _between(architecture, setting))
        )
    elif is_wrapped(job, companion):
        gathered = gathered_whole(job, companion)
    elif not uses_fsdp(job) and is_zero3(job):
        around, in_layers, gathered = gathered_by_engine(job, companion)
        highest = max(layers.peak + in_layers, around + _between(architecture, setting) - cache)  # which is empty then
        layers = layers._replace(peak=highest - gathered)
    return _with_outputs(job, architecture, setting, layers, cache)._replace(gathered_bytes=gathered)


def _between(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of a pass without gradients between two layers: variables of the model, and hidden states."""
    hidden_states = rounded_bytes((setting.batch * setting.sequence, architecture.hidden_size), setting.param_dtype)
    return layers_without_grad(architecture._replace(blocks=()), setting).peak + hidden_states


def _pass_setting(base: Setting, architecture: Architecture, dtype: str, *, trained: bool) -> Setting:
    """Return the setting of a forward pass without gradients. ``dtype``: that of the weights, as modules see them.

    ``trained``: the weights require a gradient, as those of a companion do, which runs under ``no_grad``.
    """
    return base._replace(
        hidden=architecture.hidden_size,
        param_dtype=dtype,
        compute_dtype=dtype,
        adapter=None,
        trained=trained,
        frozen_modules=(),
        needs_input_gradient=False,
        input_is_counted_elsewhere=False,
        has_grad=True,
        liger=None,
    )


def _with_outputs(
    job: TrainingJob, architecture: Architecture, setting: Setting, layers: LayersForward, cache: int = 0
) -> ForwardOnlyPass:
    """Return the forward pass with its head, its hidden states, and what a vision tower leaves.

    ``layers``: the peak of embedding and layers. ``cache``: bytes of keys and values that the pass returns.
    """
    dtype = setting.param_dtype
    head = ForwardOnlyHead(
        vocab=architecture.vocab_size,
        hidden=architecture.hidden_size,
        bias=architecture.head_bias,
        final_norm=architecture.final_norm,
        softcap=architecture.final_softcap,
        scales_logits=architecture.logit_scale,
        weight_dtype=dtype,
        trained=setting.trained,
    )
    hidden_bytes = rounded_bytes((setting.batch * setting.sequence, architecture.hidden_size), dtype)
    forward_pass = ForwardOnlyPass(
        head=head,
        setting=setting,
        layers_peak_bytes=layers.peak + cache,
        autocast_copies_bytes=layers.autocast_copies,
        gathered_bytes=0,
        hidden_states_bytes=(architecture.num_layers + 1) * hidden_bytes,  # of the embedding and of all layers
        other_outputs_bytes=cache,
    )
    if architecture.vision is None:
        return forward_pass
    from memcheck.frameworks.torch.tower_units import forward_only_tower

    tower = forward_only_tower(job, architecture, setting)
    return forward_pass._replace(
        layers_peak_bytes=max(layers.peak, tower.peak - tower.held_by_variables),
        tower_variables_bytes=tower.held_by_variables,
        other_outputs_bytes=tower.returned_image_tokens + cache,
    )


def _keys_and_values(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of the cache that a reference fills and returns, as its config tells it to (``use_cache``).

    The Trainer switches it off in the trained model's config alone (transformers 5.23 trainer.py). A layer with a
    window caches a view of all keys and values (cache_utils.py, ``DynamicSlidingWindowLayer``).
    """
    rows, item_bytes = setting.batch * setting.sequence, ITEM_BYTES[setting.compute_dtype]
    return sum(
        2 * count * rounded(rows * block.mixer.kv_heads * block.mixer.head_dim * item_bytes)
        for block, count in architecture.blocks
        if isinstance(block.mixer, Attention)
    )


def layer_gathers(job: TrainingJob, architecture: Architecture, base: Setting) -> int:
    """Return the bytes of a layer's gathered parameters, its flat buffer and that of the layer before.

    The root's parameters are gathered all step, and do not count.
    """
    largest_group = _fullest(job, architecture, base)
    return largest_group.unsharded_params + 2 * largest_group.all_gather_output


def _fullest(job: TrainingJob, architecture: Architecture, base: Setting) -> Group:
    """Return the FSDP group of the layer whose parameters and flat buffers take most bytes while gathered."""
    largest_group, placement = NO_GROUP, setting_placement(base)
    for block, _ in architecture.blocks:
        sharded = [shard_placement(job, t, job.layout.shard_group) for t in block_tensors(block, placement)]
        layer_group = fsdp_group(
            sharded,
            job.recipe,
            casts_every_tensor=all_gather_dtype(job) is not None,
            accumulation_dtype=job.recipe.reduce,
            leaves_whole_experts=job.framework.fsdp2.leaves_whole_experts,
        )
        largest_group = max(
            largest_group, layer_group, key=lambda group: group.unsharded_params + 2 * group.all_gather_output
        )
    return largest_group


class LayersForward(Record):
    """Bytes of a forward pass without gradients, up to the last layer's output."""

    peak: int
    """The highest point: one layer's own peak, with variables of the model's forward and earlier autocast copies."""
    autocast_copies: int
    """Autocast's copies of weights at the end of the pass."""


@lru_cache(maxsize=512)
def layers_without_grad(architecture: Architecture, setting: Setting) -> LayersForward:
    """Return the bytes of a forward pass through embedding and all layers without gradients.

    Autocast caches a copy of each weight until the pass is over, so that later layers run on top of earlier copies.
    """
    stream = rounded_bytes((setting.batch * setting.sequence, architecture.hidden_size), setting.param_dtype)
    inputs_embeds = stream if setting.style.runs_transformers_modules else 0
    masks = masks_of(architecture, setting)
    model_variables = layers_of(setting.style).rotary_tables(architecture, setting) + inputs_embeds
    model_variables += masks.held_by_variables + masks.held_by_graph + masks.unused_variables
    highest = copies = 0
    for block, count in architecture.blocks:
        layer = _layer_without_grad(block, setting)
        highest = max(highest, copies + (count - 1) * layer.autocast_copies + layer.peak)
        copies += count * layer.autocast_copies
    return LayersForward(peak=highest + model_variables, autocast_copies=copies)


@lru_cache(maxsize=1024)
def _layer_without_grad(block: Block, setting: Setting) -> LayersForward:
    """Return the peak bytes of one layer's forward without gradients, and the bytes of its autocast copies."""
    tape = Tape(autocast=setting.autocast_dtype)
    tape.grad_enabled = False
    ctx = Context(tape, setting)
    shape = (ctx.residual_tokens * setting.streams, ctx.hidden)
    x = Value(tape.new(shape, setting.param_dtype, "block input"), shape, setting.param_dtype)
    forward, _ = layers_of(setting.style).recomputing(block, "none")
    y = forward(ctx, x)
    peak = tape.peak
    # free all other tensors: the copies that are still alive are in autocast's cache, until its context ends
    x.storage = y.storage = None
    for value in (*ctx.extra_outputs, *ctx.unused_outputs, *ctx.attention_locals):
        value.storage = None
    copies = sum(value.storage.bytes for value in tape.casts.values() if value.storage is not None)
    return LayersForward(peak=peak, autocast_copies=copies)


def hidden_states(job: TrainingJob, architecture: Architecture, tokens: int, dtype: str) -> int:
    """Return the bytes of the hidden states that TRL up to 0.28 asks for: the embedding's rows and every layer's
    output.
    """
    if job.objective.loss_code != "trl-0.24":
        return 0
    return (architecture.num_layers + 1) * rounded_bytes((tokens, architecture.hidden_size), dtype)
