"""Moments before and after a step: loading the model, saving it, and evaluating it."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import Part, ResidentTensors
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes, unfilled, weight_bytes
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import ITEM_BYTES, Storage, Tape, Value, rounded
from memcheck.frameworks.torch.data_parallel import Group, all_gather_dtype, ends_have_own_groups, fsdp_group, uses_fsdp
from memcheck.frameworks.torch.end_units import LayersBeforeHead, head_of, run_head
from memcheck.frameworks.torch.forward_only_pass import LayersForward, layer_gathers, layers_without_grad
from memcheck.frameworks.torch.rank_tensors import checked_architecture, embedding_tensors, head_tensors, is_tied
from memcheck.frameworks.torch.resident import (
    PACKED,
    Sharding,
    engine_of,
    is_updated,
    resident_dtype,
    sharding,
    states_dtype,
    unit_counts,
)
from memcheck.frameworks.torch.units import base_setting
from memcheck.job.keys import state_key
from memcheck.job.training import shards_parameters
from memcheck.job.types import Objective, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record


def sharding_at(job: TrainingJob, instant: str) -> Sharding:
    """Return how tensors are divided at an instant: while the model loads or is saved, they are whole."""
    shards = sharding(job)
    return shards if instant not in ("load", "save") else Sharding(1, 1, 1, uses_flat_buffers=shards.uses_flat_buffers)


class Whole(Record):
    """Bytes of a rank's tensors before data parallelism divides them."""

    parameters: int = 0
    adapters: int = 0
    optimizer_states: int = 0


def around(job: TrainingJob, resident: ResidentTensors, steps: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """Add the instants of loading, evaluation and saving to those of a step, as far as the job has them.

    ``resident``: the rank's tensors. ``steps``: the instants of a step. A replicated model is loaded and saved without
    further memory on the GPU.
    """
    sharded = shards_parameters(job.layout, job.framework)
    loads = job.framework.puts_whole_model_on_gpu(job.initialization.place) if sharded else ""
    gathers = job.checkpoint.state_dict == "full" and job.checkpoint.offload == "none" and _shards(job)
    evaluates, ahead = job.evaluation is not None, job.initialization.loads_before_quantizing and not sharded
    if not loads and not gathers and not evaluates and not ahead:
        return steps
    instants = list(steps)
    if ahead:
        unquantised = Whole(parameters=_unquantised(state_key(job), resident))
        instants.insert(0, _instant("load", "matrices in 16 bits that wait to be quantised", unquantised))
    if evaluates:
        engine = engine_of(job, resident.units, recomputes=True)  # type: ignore[arg-type]  # a rank's tensors
        gathered = engine.gathered_in_evaluation if engine is not None else 0
        instants.append(evaluation_instant(job, next(i for i in steps if i.name == "init"), gathered))
    if not loads and not gathers:
        return tuple(instants)
    unsharded = _whole(state_key(job), resident)
    if loads:
        shards = {}
        if job.framework.keeps_whole_model_while_sharding(job.base_format, job.fsdp_version):
            between_steps = next(i for i in steps if i.name == "init").components_bytes
            # What offloaded 4-bit weights leave on the GPU, their constants, are the whole model's own tensors.
            made = ("parameters", "adapters") if job.parameter_offload == "none" else ("adapters",)
            shards = {name: between_steps.get(name, 0) for name in made}
            loads = f"{loads}, which stays until the last of its shards is made"
        instants.insert(0, _instant("load", loads, unsharded._replace(optimizer_states=0), shards))
    if gathers:
        between_steps = next(i for i in steps if i.name == "init").components_bytes
        saved = unsharded if job.checkpoint.optimizer else unsharded._replace(optimizer_states=0)
        instants.append(_instant("save", "gathering the full state dict on every GPU", saved, between_steps))
    return tuple(instants)


def _shards(job: TrainingJob) -> bool:
    """Return whether data parallelism shards the parameters: FSDP does from ZeRO stage 2 on, DeepSpeed at stage 3."""
    least = 3 if job.framework.has_sharding_engine else 2
    return job.layout.zero_stage >= least


@lru_cache(maxsize=1024)
def _whole(job: TrainingJob, resident: ResidentTensors) -> Whole:
    """Return the bytes of a rank's parameters, adapters and optimizer states without data-parallel sharding."""
    parameters = adapters = states = 0
    for tensors, count in unit_counts(resident):
        for t in tensors:
            size = count * weight_bytes(t, resident_dtype(job, t))
            if ".lora_" in t.name:
                adapters += size
            else:
                parameters += size
            if is_updated(job, t):
                states += count * optimizer_state_bytes(t, t.numel, job.optimizer.name, states_dtype(job, t))
    return Whole(parameters, adapters, states)


@lru_cache(maxsize=1024)
def _unquantised(job: TrainingJob, resident: ResidentTensors) -> int:
    """Return the bytes of a rank's parameters in 16 bits, without adapters: as they lie in a model's files."""
    return sum(
        count * rounded(t.numel * ITEM_BYTES["bf16"])
        for tensors, count in unit_counts(resident)
        for t in tensors
        if ".lora_" not in t.name
    )


@lru_cache(maxsize=1024)
def unfilled_whole(job: TrainingJob, resident: ResidentTensors) -> int:
    """Return the bytes that segments of whole weights leave unfilled, of a :func:`state_key` job."""
    if job.expandable_segments:
        return 0
    unfilled_bytes = 0
    for tensors, count in unit_counts(resident):
        packed = min(count, PACKED)
        unfilled_bytes += (
            unfilled([weight_bytes(t, resident_dtype(job, t)) for t in tensors] * packed) * count // packed
        )
    return unfilled_bytes


def _instant(name: str, operation: str, unsharded: Whole, also_live: dict[str, int] | None = None) -> Instant:
    """Return the instant at which ``unsharded`` states are live, in addition to ``also_live`` bytes by component."""
    components = dict(also_live or {})
    for component, count in unsharded._asdict().items():
        if count:
            components[component] = components.get(component, 0) + count
    return Instant(name, operation, sum(components.values()), components)


def evaluation_instant(job: TrainingJob, between_steps: Instant, gathered: int = 0) -> Instant:
    """Return the peak of the evaluation. ``between_steps``: what is allocated between steps.

    ``gathered``: bytes of the parameters that DeepSpeed's engine has gathered while it runs forward (ZeRO-3).
    """
    evaluation = job.evaluation
    architecture = job.architecture
    assert evaluation is not None and isinstance(architecture, Architecture)  # noqa: S101, PT018 - the caller asks for both
    job = job._replace(
        micro_batch_size=evaluation.micro_batch_size, sequence_length=evaluation.sequence_length or job.sequence_length
    )
    if evaluation.keeps_logits and job.objective.name == "sft":
        job = job._replace(objective=Objective())  # a fused head makes them after all
    forward_peak, logits_bytes = _evaluation_forward(job, checked_architecture(job, architecture))
    earlier_logits = concatenated = 0
    if evaluation.keeps_logits:
        earlier_steps = evaluation.steps - 1
        # in the last forward: the concatenated logits of all earlier steps. From two steps on these are a copy, and the
        # loop's variable still refers to the logits of the step before
        earlier_logits = earlier_steps * logits_bytes
        if earlier_steps > 1:
            earlier_logits += logits_bytes
        # in the last concatenation: a result of all steps, and its two inputs, which are as large together
        concatenated = 2 * evaluation.steps * logits_bytes
    forward = forward_peak + earlier_logits
    id_bytes = rounded(job.rows * job.sequence_length * ITEM_BYTES["int64"])
    inputs = 3 * id_bytes  # token ids, attention mask and labels
    components = dict(between_steps.components_bytes)
    most, operation = max((forward, "forward pass of the evaluation"), (concatenated, "concatenating kept logits"))
    for name, count in (("logits_and_loss", most), ("activations", inputs), ("communication_buffers", gathered)):
        if count:
            components[name] = components.get(name, 0) + count
    return Instant(
        name="evaluation", operation=operation, allocated_bytes=sum(components.values()), components_bytes=components
    )


class _EvaluationForward(Record):
    """Bytes of an evaluation batch's forward."""

    peak: int
    logits: int
    """Logits that the forward returns."""


def _evaluation_forward(job: TrainingJob, architecture: Architecture) -> _EvaluationForward:
    """Return the bytes of an evaluation batch's forward: its layers, then the head on the last hidden state."""
    base = base_setting(job, architecture, None)._replace(needs_input_gradient=False)
    whole_model = Part(0, architecture.num_layers, has_embedding=True, has_head=True)
    head = head_of(job, architecture, base, whole_model, gradient_dtype=None, layers=LayersBeforeHead())
    layers = layers_without_grad(architecture, base)
    ends = _EndGroups()
    if uses_fsdp(job):
        ends = _end_groups(job, architecture, base, head_trained=head.trained)
        with_gathers = layers.peak + layer_gathers(job, architecture, base)
        layers = layers._replace(peak=max(with_gathers, ends.before_layers))
    tape = Tape(autocast=base.autocast_dtype)
    tape.grad_enabled = False
    ctx = Context(tape, base)
    loss_after_model = head.objective.loss_after_model
    buffers = _run_layers(ctx, layers, ends if not loss_after_model else ends._replace(head_buffer=0))
    shape = (ctx.residual_tokens * base.streams, ctx.hidden)
    x = Value(tape.new(shape, base.param_dtype, "last hidden state"), shape, base.param_dtype)
    loss = run_head(ctx, head, x)
    peak = max(tape.peak, tape.earlier_peak)
    if loss_after_model and ctx.final_norm_peak is not None:
        peak = max(peak, ctx.final_norm_peak.bytes + ends.head_buffer)
    outputs_in_fp32 = job.framework.copies_outputs_to_fp32 and job.recipe.recipe.endswith("-mixed")
    logits = sum(
        rounded(value.numel * ITEM_BYTES["fp32" if outputs_in_fp32 else value.dtype]) for value in ctx.model_outputs
    )
    if outputs_in_fp32 and ctx.model_outputs:
        # convert_outputs_to_fp32 after the loss: the logits in both dtypes, and autocast's copies still there
        peak = max(peak, tape.live + logits)
    del buffers, loss
    if loss_after_model and job.objective.keeps_evaluation_logits:
        item_bytes = ITEM_BYTES["fp32" if outputs_in_fp32 else base.param_dtype]
        logits = rounded(ctx.tokens * architecture.vocab_size * item_bytes)
    return _EvaluationForward(peak, logits)


def _run_layers(ctx: Context, layers: LayersForward, ends: _EndGroups) -> list[Storage]:
    """Replay the layers, as their peak alone, on the tape of ``ctx``.

    Returns the gathered parameters and buffers that are live until the root's forward returns.
    """
    tape = ctx.tape
    live: list[Storage] = []
    if ends.root:
        live.append(tape.new((ends.root,), "int8", "gathered parameters of the root"))
    peak_of_layers = tape.new((layers.peak,), "int8", "layers")
    del peak_of_layers  # it is over when the head's own group is gathered
    if ends.head:
        live.append(tape.new((ends.head,), "int8", "gathered parameters of the head"))
    if ends.head_buffer:
        live.append(tape.new((ends.head_buffer,), "int8", "flat buffer of the head"))
    if layers.autocast_copies:  # kept with those of the head, until autocast is left
        tape.casts[0] = tape.value((layers.autocast_copies,), "int8", "autocast copies")
    return live


class _EndGroups(Record):
    """Bytes of the FSDP groups of embedding and head in a forward without gradients.

    Both are in the root's group, or, where Accelerate makes it so, each is a group of its own.
    """

    root: int = 0
    """Gathered parameters of the root's group with both, which stay all the time."""
    head: int = 0
    """Gathered parameters of the head's own group, which come after the layers."""
    head_buffer: int = 0
    """Flat buffer of the head's own group, which stays until the root's forward returns."""
    before_layers: int = 0
    """Peak while the group of the embedding, or the root, is gathered."""


def _end_groups(job: TrainingJob, architecture: Architecture, base: Setting, *, head_trained: bool) -> _EndGroups:
    """Return the FSDP groups of embedding and head. ``head_trained``: the head's own tensors are trained."""
    of_embedding = embedding_tensors(architecture, base.tensor_parallel, base.trained)
    of_head = head_tensors(
        architecture,
        base.tensor_parallel,
        is_tied(architecture, base.tensor_parallel),
        head_trained,
        ends_trained=(base.trained, base.trained),
        has_adapters=base.adapter is not None,
    )
    if not ends_have_own_groups(job):
        both = _gathered(job, (*of_embedding, *of_head))
        return _EndGroups(root=both.unsharded_params, before_layers=both.all_gather_output)
    first, last = _gathered(job, of_embedding), _gathered(job, of_head)
    return _EndGroups(
        head=last.unsharded_params,
        head_buffer=last.all_gather_output,
        before_layers=first.all_gather_output + first.unsharded_params,
    )


def _gathered(job: TrainingJob, tensors: tuple[LocalTensor, ...]) -> Group:
    """Return the FSDP group of ``tensors``, over whose shards a rank's model is divided."""
    return fsdp_group(
        [(t, job.layout.shard_group) for t in tensors],
        job.recipe,
        casts_every_tensor=all_gather_dtype(job) is not None,
        accumulation_dtype=job.recipe.reduce,
    )
