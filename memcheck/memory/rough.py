"""The rough model: parameters, layers, hidden size and an activation multiplier, when nothing else is known.

Activations per layer = batch x sequence x hidden x multiplier x bytes of the compute dtype; full recompute keeps one
hidden state per layer. The estimate is as good as the multiplier (8 to 12 are typical for a transformer with flash
attention), and the interval says so. The buffers of an engine follow from the parameters alone: DeepSpeed's, as if all
layers were alike.
"""

from __future__ import annotations

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.program import Timeline
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes
from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.deepspeed.engine import EngineBuffers
from memcheck.frameworks.torch.pipelining import in_flight
from memcheck.frameworks.torch.resident import engine_of, sharding, step_temporaries
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Rough
from memcheck.record import Record


def rough_ranks(job: TrainingJob) -> tuple[RankEstimate, ...]:
    """Estimate every pipeline rank of a job whose model is ``rough``: known by its number of parameters.

    Raises:
        UnsupportedError: the method trains adapters, which needs the model's matrices.
    """
    model = job.architecture
    if not isinstance(model, Rough):
        raise TypeError("rough_ranks needs a Rough model")
    if job.method != "full":
        raise UnsupportedError(
            f"`method: {job.method}` needs the model's matrices, which a `rough` model does not have",
            "describe the model by name, config or architecture",
            "/training/method",
        )
    return tuple(_rank(job, model, rank) for rank in range(job.layout.pipeline))


class RoughPart(Record):
    """The part of a rough model on one pipeline rank."""

    parameters: int
    """Parameters of the rank, before data-parallel ranks divide them."""
    layers: int
    engine: EngineBuffers
    """Buffers that an engine (DeepSpeed) allocates around the model; all zero without one."""
    gradients: int
    """Bytes that backward leaves for the optimizer, in addition to the engine's resident buffers."""


def _rank(job: TrainingJob, model: Rough, rank: int) -> RankEstimate:
    """Estimate one pipeline rank of a rough model: its states, forward and backward, and the optimizer's step."""
    layout = job.layout
    parameters = ceil_div(model.parameters, layout.tensor * layout.pipeline)
    layers = ceil_div(model.layers, layout.pipeline)
    layer = _one_tensor(ceil_div(parameters, layers))
    buffers = engine_of(job, [(layer,)] * layers, recomputes=True)
    engine = buffers if isinstance(buffers, EngineBuffers) else EngineBuffers()
    gradients = 0
    if not engine.persistent_gradients:
        gradients = rounded(ceil_div(parameters, sharding(job).gradient_ranks) * DTYPE_BYTES[job.recipe.gradients])
    share = RoughPart(parameters=parameters, layers=layers, engine=engine, gradients=gradients)
    timeline = Timeline()
    _hold_states(job, share, timeline)
    _forward_and_backward(job, model, share, timeline, rank)
    _optimize(job, share, timeline)
    return RankEstimate(rank, timeline.instants(), parameters)


def _one_tensor(numel: int) -> LocalTensor:
    """Return ``numel`` trained weights of a rough model as one tensor, whose matrices are not known."""
    return LocalTensor("weights", (numel,), trained=True, matrix=True)


def _hold_states(job: TrainingJob, share: RoughPart, timeline: Timeline) -> None:
    """Hold what is resident between steps on the timeline: parameters, masters, optimizer states, engine buffers.

    ``share``: the rank's part of the model.
    """
    recipe, shards, engine = job.recipe, sharding(job), share.engine
    timeline.hold(
        "parameters", rounded(ceil_div(share.parameters, shards.parameter_ranks) * DTYPE_BYTES[recipe.params])
    )
    updated = ceil_div(share.parameters, shards.optimizer_ranks)  # parameters that this rank steps on
    if recipe.master != "none":
        timeline.hold("master_weights", rounded(updated * DTYPE_BYTES[recipe.master]))
    states = optimizer_state_bytes(_one_tensor(updated), updated, job.optimizer.name, recipe.optimizer_states)
    timeline.hold("optimizer_states", states)
    timeline.hold("master_weights", engine.fp32_partition_copy)
    timeline.hold("gradients", engine.persistent_gradients)
    timeline.hold("communication_buffers", engine.from_start)
    timeline.mark("init", "states at rest")


LOGIT_BYTES = 12
"""Bytes per logit of the standard loss: fp32 logits, log-probabilities and gradient."""
FUSED_LOGIT_BYTES = 6
"""Bytes per logit of other losses, which are estimated at half of that."""


def _forward_and_backward(job: TrainingJob, model: Rough, share: RoughPart, timeline: Timeline, rank: int) -> None:
    """Count forward, logits and backward of one rank on the timeline, in bytes.

    ``share``: the rank's part of the model. ``rank``: its number in the pipeline.
    """
    layout, layers = job.layout, share.layers
    engine, gradients = share.engine, share.gradients
    recomputes = job.checkpointing.mode == "full"
    item_bytes = DTYPE_BYTES[job.recipe.compute]
    tokens = job.micro_batch_size * ceil_div(job.sequence_length, layout.context)
    hidden_state = tokens * model.hidden_size * item_bytes
    per_layer = int(hidden_state * model.activation_multiplier) // layout.tensor
    if sharding(job).parameter_ranks > 1:  # the running layer is gathered, and the next one prefetched
        two_layers = 2 * ceil_div(share.parameters, layers) * item_bytes
        timeline.hold("communication_buffers", rounded(max(two_layers, engine.gathered_in_forward)))
    saved_bytes = layers * (hidden_state if recomputes else per_layer)
    saved_bytes = int(saved_bytes * in_flight(rank, layout, job.gradient_accumulation_steps))
    recomputed_bytes = per_layer if recomputes else 0  # of one layer at a time
    timeline.hold("activations", saved_bytes)
    timeline.mark("forward", "all layers")
    if model.vocab_size is not None and rank == layout.pipeline - 1:
        logits = tokens * ceil_div(model.vocab_size, layout.tensor)
        _loss(job, logits, gradients, timeline)
    buckets = engine.gradient_buckets + _own_part(engine)
    timeline.hold("gradients", gradients + buckets)
    timeline.hold("activations", recomputed_bytes)
    if layout.pipeline == 1 and job.gradient_accumulation_steps == 1:
        # gradients appear as activations are freed: the estimate is of the moment with half of the activations
        timeline.release("activations", saved_bytes // 2)
        timeline.mark("backward", "half-way through the layers")
        timeline.hold("activations", saved_bytes // 2)
    else:
        timeline.mark("backward", "first layer to run backward")
    timeline.release("activations", saved_bytes + recomputed_bytes)
    timeline.release("gradients", buckets)


def _loss(job: TrainingJob, logits: int, gradients: int, timeline: Timeline) -> None:
    """Count the moment of the logits' gradient, at which gradients of an earlier micro-batch exist, too.

    ``logits``: their number on the rank. ``gradients``: bytes of all gradients of the rank.
    """
    logits_bytes = logits * (LOGIT_BYTES if job.loss.kind == "standard" else FUSED_LOGIT_BYTES)
    earlier_gradients = gradients if job.gradient_accumulation_steps > 1 else 0
    timeline.hold("logits_and_loss", logits_bytes)
    timeline.hold("gradients", earlier_gradients)
    timeline.mark("backward", "gradient of the logits")
    timeline.release("logits_and_loss", logits_bytes)
    timeline.release("gradients", earlier_gradients)


def _optimize(job: TrainingJob, share: RoughPart, timeline: Timeline) -> None:
    """Count the optimizer's step of one rank on the timeline, with the copies of gradients that an engine makes."""
    own_gradients = _own_part(share.engine)
    if own_gradients:
        timeline.release("gradients", share.gradients)
        timeline.hold("gradients", own_gradients)
    updated = ceil_div(share.parameters, sharding(job).optimizer_ranks)
    optimizer = job.optimizer
    weights = [(_one_tensor(share.parameters), updated)]
    copies = step_temporaries(weights, optimizer.name, optimizer.implementation, job.recipe.optimizer_states)
    timeline.hold("temporaries", copies + share.engine.step_temporaries)
    timeline.mark("optimizer", f"{optimizer.name} step")


def _own_part(engine: EngineBuffers) -> int:
    """Return the bytes of the rank's own share of gradients under ZeRO-1; 0 under other stages.

    ZeRO-1 has them in addition to the gradients of the whole model, which are freed once they are reduced.
    """
    return engine.partition_gradients if engine.whole_gradients else 0
