"""The forward pass without gradients that a micro-batch runs in addition to its own: what it holds."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import ITEM_BYTES, Tape, Value, rounded, rounded_bytes
from memcheck.frameworks.forward_only_pass import ForwardOnlyHead, ForwardOnlyPass
from memcheck.frameworks.registry import layers_of, model_states_of
from memcheck.frameworks.torch.data_parallel import NO_GROUP, Group, all_gather_dtype, fsdp_group, is_zero3, uses_fsdp
from memcheck.frameworks.torch.rank_tensors import block_tensors, checked_architecture, setting_placement
from memcheck.frameworks.torch.reference_models import alone, by_layer, gathered_by_engine, gathered_whole, is_wrapped
from memcheck.frameworks.torch.resident import shard_placement
from memcheck.frameworks.torch.units import masks_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Block


def forward_only_pass(job: TrainingJob, architecture: Architecture, base: Setting) -> ForwardOnlyPass | None:
    """Return what an additional forward pass without gradients allocates in each micro-batch; None if there is none.

    Its model is a reference or teacher (``auxiliary_models``), or the trained model with its adapters disabled.
    ``base``: the setting of the trained model.
    """
    objective = job.objective
    if not objective.forward_only_pass:
        return None
    companion = next(iter(job.auxiliary_models), None)
    run_architecture = companion.architecture if companion is not None else architecture
    is_trained_model = companion is None
    dtype = job.recipe.compute
    if job.recipe.autocast:
        dtype = companion.dtype if companion else job.recipe.params
    trained = companion is not None
    setting = base._replace(
        hidden=run_architecture.hidden_size,
        param_dtype=dtype,
        compute_dtype=dtype,
        adapter=None,
        trained=trained,
        frozen_modules=(),
        needs_input_gradient=False,
        external_input=False,
        has_grad=True,
        liger=base.liger if is_trained_model else None,
    )
    checked = checked_architecture(alone(job, companion), run_architecture) if companion else run_architecture
    # the layers' peak without graphs, and autocast's copies of the weights
    layers, cast_bytes = passing(checked, setting)
    gathered = 0  # bytes of gathered parameters that are live beyond one layer
    if uses_fsdp(job):
        wrapped = companion is not None and is_wrapped(job, companion)
        gathered = gathered_whole(job, companion) if companion is not None and wrapped else 0
        if companion is not None and wrapped and by_layer(job):
            full_setting = base._replace(
                trained=True, frozen_modules=(), adapter=None, hidden=run_architecture.hidden_size
            )
            largest_group = _fullest(alone(job, companion), run_architecture, full_setting)
            gathered = largest_group.gathered + largest_group.flat
            # while a layer is copied out of its flat buffer, the previous layer's flat buffer is live, and the hidden
            # states between both
            between = passing(run_architecture._replace(blocks=()), setting)[0]
            between += rounded_bytes((setting.batch * setting.sequence, run_architecture.hidden_size), dtype)
            layers = max(layers, largest_group.flat + between)
        layers += layer_gathers(job, architecture, base) if is_trained_model else 0
    elif companion is not None and is_zero3(job):
        gathered = gathered_by_engine(job, companion)
    head = ForwardOnlyHead(
        vocab=run_architecture.vocab_size,
        hidden=run_architecture.hidden_size,
        bias=run_architecture.head_bias,
        final_norm=run_architecture.final_norm,
        softcap=run_architecture.final_softcap,
        scaled=run_architecture.logit_scale,
        dtype=dtype,
        trained=trained,
    )
    # hidden states of the embedding and of all layers, which TRL's older code asks for
    states = (run_architecture.num_layers + 1) * rounded_bytes(
        (setting.batch * setting.sequence, run_architecture.hidden_size), dtype
    )
    cached = _keys_and_values(run_architecture, setting) if objective.reference_caches and trained else 0
    forward_pass = ForwardOnlyPass(
        head=head,
        setting=setting,
        layers=layers + cached,
        casts=cast_bytes,
        gathered=gathered,
        states=states,
        given_out=cached,
    )
    if run_architecture.vision is None:
        return forward_pass
    from memcheck.frameworks.torch.tower_units import seen_again

    highest, tower_variables, given_out = seen_again(job, run_architecture, setting)
    return forward_pass._replace(
        layers=max(layers, highest - tower_variables), seen=tower_variables, given_out=given_out + cached
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
    return largest_group.gathered + 2 * largest_group.flat


def _fullest(job: TrainingJob, architecture: Architecture, base: Setting) -> Group:
    """Return the FSDP group of the layer whose parameters and flat buffers take most bytes while gathered."""
    largest_group, leaves_whole_experts = NO_GROUP, job.framework.fsdp2.leaves_whole_experts
    for block, _ in architecture.blocks:
        sharded = [
            shard_placement(job, t, job.layout.shard_group) for t in block_tensors(block, setting_placement(base))
        ]
        casts_every_tensor, accumulation_dtype = all_gather_dtype(job) is not None, job.recipe.reduce
        layer_group = fsdp_group(
            sharded,
            job.recipe,
            casts_every_tensor=casts_every_tensor,
            accumulation_dtype=accumulation_dtype,
            leaves_whole_experts=leaves_whole_experts,
        )
        largest_group = max(largest_group, layer_group, key=lambda group: group.gathered + 2 * group.flat)
    return largest_group


@lru_cache(maxsize=512)
def passing(architecture: Architecture, setting: Setting) -> tuple[int, int]:
    """Return the peak bytes of a forward pass through all layers without gradients, and of autocast's copies at its
    end.

    Autocast caches a copy of each weight until the pass is over, so that later layers run on top of earlier copies.
    """
    tokens, a = setting.batch * setting.sequence, architecture
    stream = rounded_bytes((tokens, a.hidden_size), setting.param_dtype)
    model_variables = model_states_of(setting.style).rotary_tables(a, setting)
    model_variables += stream if setting.style.modeling_files else 0  # `inputs_embeds`
    masks = masks_of(a, setting)
    model_variables += masks.variables + masks.graph + masks.unused
    highest = cast_bytes = 0
    for block, count in a.blocks:
        layer_peak, layer_casts = _layer(block, setting)
        highest = max(highest, cast_bytes + (count - 1) * layer_casts + layer_peak)
        cast_bytes += count * layer_casts
    return highest + model_variables, cast_bytes


@lru_cache(maxsize=1024)
def _layer(block: Block, setting: Setting) -> tuple[int, int]:
    """Return the peak bytes of one layer's forward without gradients, and the bytes of its autocast copies of
    weights.
    """
    tape = Tape(autocast=setting.autocast_dtype)
    tape.grad_enabled = False
    ctx = Context(tape, setting)
    shape = (ctx.residual_tokens * setting.streams, ctx.hidden)
    x = Value(tape.new(shape, setting.param_dtype, "block input"), shape, setting.param_dtype)
    forward, _ = layers_of(setting.style).recomputing(block, "none")
    y = forward(ctx, x)
    peak = tape.peak
    # free all but the copies: what of them is still alive is autocast's cache, which lives until its context ends
    x.storage = y.storage = None
    for value in (*ctx.extra_outputs, *ctx.unused_outputs, *ctx.attention_locals):
        value.storage = None
    cast_bytes = sum(value.storage.bytes for value in tape.casts.values() if value.storage is not None)
    return peak, cast_bytes


def hidden_states(job: TrainingJob, architecture: Architecture, tokens: int, dtype: str) -> int:
    """Return the bytes of the hidden states that TRL up to 0.28 asks for: the embedding's rows and every layer's
    output.
    """
    if job.objective.code != "trl-0.24":
        return 0
    return (architecture.num_layers + 1) * rounded(tokens * architecture.hidden_size * ITEM_BYTES[dtype])
