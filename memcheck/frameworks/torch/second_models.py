"""Models in addition to the one that is trained: their resident bytes, and what their forward passes hold."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.state import LocalTensor, shard_numel, weight_bytes
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import ITEM_BYTES, Tape, Value, rounded, rounded_bytes
from memcheck.frameworks.layers import layers_of, model_states_of
from memcheck.frameworks.second_pass import SecondHead, SecondPass
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group, gathered_dtype, group, partitioned, wraps
from memcheck.frameworks.torch.rank_tensors import block_tensors, holding
from memcheck.frameworks.torch.resting import divided_over
from memcheck.frameworks.torch.whole_model import model_tensors
from memcheck.job.objective_types import Companion, Objective
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block
from memcheck.remembered import lru_cache


def alone(job: TrainingJob, companion: Companion) -> TrainingJob:
    """The job that would train the companion in full: its tensors are the companion's resident tensors."""
    return job._replace(
        architecture=companion.architecture,
        method="full",
        lora=None,
        freeze=(),
        liger=(),  # whose kernels are put into the model that is trained
        objective=Objective(),
        companions=(),
        upcast=False,  # accelerate casts what it prepares for training (utils/fsdp_utils.py, fsdp2_prepare_model)
        recipe=job.recipe._replace(params=companion.dtype),
    )


def companion_bytes(job: TrainingJob) -> int:
    """Resident bytes of all companions on one rank's GPU: FSDP and ZeRO-3 shard them, others hold whole copies."""
    shards = sum(_shards(job, companion) for companion in job.companions if companion.place == "device")
    return shards + sum(_beside(job, companion) for companion in job.companions)


def _shards(job: TrainingJob, companion: Companion) -> int:
    ways = job.layout.shard_group if _wraps(job, companion) or partitioned(job) else 1
    other = alone(job, companion)
    return sum(weight_bytes(t, companion.dtype, shard_numel(t, ways)) for t in companion_tensors(other))


def _wraps(job: TrainingJob, companion: Companion) -> bool:
    """Whether FSDP wraps a companion: a reference, and what a framework's own recipe shards.

    TRL's distillation trainers hand their teacher to accelerate's ``prepare_model(evaluation_mode=True)``, which wraps
    nothing (TRL 0.24 to 1.16 gkd_trainer.py, distillation_trainer.py; accelerate 1.15 accelerator.py).
    """
    return wraps(job) and (companion.role != "teacher" or job.framework.own_objectives)


def _beside(job: TrainingJob, companion: Companion) -> int:
    """What stays gathered; of a model on the host it does where its own recipe has put it there."""
    if partitioned(job):
        from memcheck.frameworks.torch.states import engine_beside

        other = alone(job, companion)
        return engine_beside()[0](other, companion_tensors(other))
    runs = companion.place == "device" or job.framework.own_objectives
    stays = runs and _wraps(job, companion) and _by_layer(job)
    return _root(job, companion).gathered if stays else 0


def companion_caches(job: TrainingJob) -> int:
    """The rotary tables that all companions hold as buffers."""
    states = model_states_of(job.framework.style)
    models = [companion.architecture for companion in job.companions]
    return sum(states.rotary_caches(a, job.sequence_length, a.num_layers, adapted=False) for a in models)


def _by_layer(job: TrainingJob) -> bool:
    """Whether the layers of the other model are FSDP units of their own: FSDP1 wraps it by its auto-wrap policy (TRL
    ``models/utils.py``, ``prepare_fsdp``), what a script has wrapped itself is left as it is, and torchtune's
    ``shard_model`` wraps all models alike.
    """
    if job.framework.own_objectives:  # resident bytes are asked of a job without its objective
        return True
    return job.option("reference_fsdp", "per_layer" if job.fsdp == 1 else "whole_model") == "per_layer"


def _root(job: TrainingJob, companion: Companion) -> Group:
    """Embedding, final norm and head, which stay gathered after a forward, and have no backward to free them."""
    units = list(model_tensors(alone(job, companion), companion.architecture))
    return _gathered_group(job, companion, (*units[0], *units[-1]))


def _gathered_group(job: TrainingJob, companion: Companion, tensors: Iterable[LocalTensor]) -> Group:
    """What FSDP gathers of a companion as one group, by the policy of the trained model. Under mixed precision that is
    in the dtype of the products, in whichever dtype the companion is stored (TRL models/utils.py, ``prepare_fsdp``:
    ``mp_policy=fsdp_plugin.mixed_precision_policy``).
    """
    divided = [(t, job.layout.shard_group) for t in tensors]
    recipe = job.recipe._replace(params=companion.dtype)
    casts = gathered_dtype(job) is not None
    if not casts:
        recipe = recipe._replace(compute=companion.dtype)
    return group(divided, recipe, casts=casts, waits=job.recipe.reduce)


def companion_tensors(job: TrainingJob) -> list[LocalTensor]:
    """The parameters of an :func:`alone` job's model."""
    architecture = job.architecture
    assert isinstance(architecture, Architecture)  # noqa: S101 - a companion has one
    return [t for tensors in model_tensors(job, architecture) for t in tensors]


def second_pass(job: TrainingJob, architecture: Architecture, base: Setting) -> SecondPass | None:
    """The forward pass without gradients that each micro-batch runs in addition to its own; None where
    there is none.
    """
    objective = job.objective
    if not objective.second_pass:
        return None
    from memcheck.frameworks.torch.units import as_built

    companion = next(iter(job.companions), None)
    other = companion.architecture if companion is not None else architecture
    own = companion is None
    dtype = job.recipe.compute if not job.recipe.autocast else (companion.dtype if companion else job.recipe.params)
    trained = companion is not None
    setting = base._replace(
        hidden=other.hidden_size, params=dtype, compute=dtype, adapter=None, trained=trained, frozen=(),
        input_grad=False, external_input=False, has_grad=True, liger=base.liger if own else None,
    )  # fmt: skip
    layers, casts = passing(as_built(alone(job, companion), other) if companion else other, setting)
    gathered = 0
    if wraps(job):
        wrapped = companion is not None and _wraps(job, companion)
        gathered = _gathered(job, companion) if companion is not None and wrapped else 0
        if companion is not None and wrapped and _by_layer(job):
            whole = base._replace(trained=True, frozen=(), adapter=None, hidden=other.hidden_size)
            found = _fullest(alone(job, companion), other, whole)
            gathered = found.gathered + found.flat
            # as it is copied out the flat buffer of the layer before is there, too, and nothing of the layer itself
            between = passing(other._replace(blocks=()), setting)[0]
            between += rounded_bytes((setting.batch * setting.sequence, other.hidden_size), dtype)
            layers = max(layers, found.flat + between)
        layers += layer_gathers(job, architecture, base) if own else 0
    elif companion is not None and partitioned(job):
        from memcheck.frameworks.torch.states import engine_beside

        inside = alone(job, companion)
        gathered = engine_beside()[1](inside, companion_tensors(inside), companion.dtype)
    head = SecondHead(
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
    passed = SecondPass(head=head, setting=setting, layers=layers, casts=casts, gathered=gathered, states=states)
    if other.vision is None:
        return passed
    from memcheck.frameworks.torch.tower_units import seen_again

    highest, seen, given_out = seen_again(job, other, setting)
    return passed._replace(layers=max(layers, highest - seen), seen=seen, given_out=given_out)


def _gathered(job: TrainingJob, companion: Companion) -> int:
    """TRL wraps a reference as one FSDP2 unit (``models/utils.py``, ``prepare_fsdp``): its parameters and their flat
    buffer live as long as its forward runs.
    """
    found = _gathered_group(job, companion, companion_tensors(alone(job, companion)))
    return found.gathered + found.flat


def layer_gathers(job: TrainingJob, architecture: Architecture, base: Setting) -> int:
    """A layer's parameters, their flat buffer and that of the layer before: the root's are gathered anyway."""
    found = _fullest(job, architecture, base)
    return found.gathered + 2 * found.flat


def _fullest(job: TrainingJob, architecture: Architecture, base: Setting) -> Group:
    """The group of the layer that gathers most."""
    most, leaves = NO_GROUP, job.framework.fsdp2.leaves_whole_experts
    for block, _ in architecture.blocks:
        divided = [divided_over(job, t, job.layout.shard_group) for t in block_tensors(block, holding(base))]
        casts, waits = gathered_dtype(job) is not None, job.recipe.reduce
        found = group(divided, job.recipe, casts=casts, waits=waits, leaves=leaves)
        most = max(most, found, key=lambda one: one.gathered + 2 * one.flat)
    return most


@lru_cache(maxsize=512)
def passing(architecture: Architecture, setting: Setting) -> tuple[int, int]:
    """A forward pass through all layers without gradients: its highest point, and autocast's copies at its end."""
    from memcheck.frameworks.torch.model_buffers import masks_of

    tokens, a = setting.batch * setting.sequence, architecture
    stream = rounded_bytes((tokens, a.hidden_size), setting.params)
    around = model_states_of(setting.style).rotary_tables(a, setting)
    around += stream if setting.style.holds_rows else 0  # `inputs_embeds`
    around += masks_of(a, setting)
    most = casts = 0
    for block, times in a.blocks:
        high, more = _layer(block, setting)
        most = max(most, casts + (times - 1) * more + high)
        casts += times * more
    return most + around, casts


@lru_cache(maxsize=1024)
def _layer(block: Block, setting: Setting) -> tuple[int, int]:
    tape = Tape(autocast=setting.autocast)
    tape.grad_enabled = False
    ctx = Context(tape, setting)
    shape = (ctx.residual_tokens * setting.streams, ctx.hidden)
    x = Value(tape.new(shape, setting.params, "block input"), shape, setting.params)
    forward, _ = layers_of(setting.style).recomputing(block, "none")
    y = forward(ctx, x)
    peak = tape.peak
    x.storage = y.storage = None
    for value in (*ctx.returned, *ctx.unused, *ctx.named):
        value.storage = None
    casts = sum(value.storage.bytes for value in tape.casts.values() if value.storage is not None)
    return peak, casts


def hidden_states(job: TrainingJob, architecture: Architecture, tokens: int, dtype: str) -> int:
    """Bytes of the hidden states that TRL up to 0.28 asks for: the embedding's rows and every layer's output."""
    if job.objective.code != "trl-0.24":
        return 0
    return (architecture.num_layers + 1) * rounded(tokens * architecture.hidden_size * ITEM_BYTES[dtype])
