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
from memcheck.frameworks.torch.optimizer import step_temporaries
from memcheck.frameworks.torch.pipelining import in_flight
from memcheck.frameworks.torch.resident import engine_of, sharding
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
    local, layers = ceil_div(model.parameters, layout.tensor * layout.pipeline), ceil_div(model.layers, layout.pipeline)
    layer = LocalTensor("weights", (ceil_div(local, layers),), True, matrix=True)  # all of a layer's weights as one
    laid_out = engine_of(job, [(layer,)] * layers, recomputes=True)
    engine = laid_out if isinstance(laid_out, EngineBuffers) else EngineBuffers()
    gradients = rounded(ceil_div(local, sharding(job).gradients) * DTYPE_BYTES[job.recipe.gradients])
    share = RoughPart(parameters=local, layers=layers, engine=engine, gradients=0 if engine.gradients else gradients)
    timeline = Timeline()
    _rest(job, share, timeline)
    _walk(job, model, share, timeline, rank)
    _optimize(job, share, timeline)
    return RankEstimate(rank, timeline.instants(), local)


def _rest(job: TrainingJob, share: RoughPart, timeline: Timeline) -> None:
    """Hold what is resident between steps: parameters, master weights, optimizer states, and an engine's buffers."""
    recipe, cut, engine = job.recipe, sharding(job), share.engine
    timeline.hold("parameters", rounded(ceil_div(share.parameters, cut.parameters) * DTYPE_BYTES[recipe.params]))
    mine = ceil_div(share.parameters, cut.optimizer)
    if recipe.master != "none":
        timeline.hold("master_weights", rounded(mine * DTYPE_BYTES[recipe.master]))
    state_of = LocalTensor("weights", (mine,), True, matrix=True)
    states = optimizer_state_bytes(state_of, mine, job.optimizer.name, recipe.optimizer_states)
    timeline.hold("optimizer_states", states)
    timeline.hold("master_weights", engine.master)
    timeline.hold("gradients", engine.gradients)
    timeline.hold("communication_buffers", engine.resident)
    timeline.mark("init", "states at rest")


def _walk(job: TrainingJob, model: Rough, share: RoughPart, timeline: Timeline, rank: int) -> None:
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
    if sharding(job).parameters > 1:  # the running layer is gathered, and the next one prefetched
        two_layers = 2 * ceil_div(share.parameters, layers) * item_bytes
        timeline.hold("communication_buffers", rounded(max(two_layers, engine.live_parameters)))
    kept = layers * (hidden_state if recomputes else per_layer)
    kept = int(kept * in_flight(rank, layout, job.gradient_accumulation_steps))
    transient = per_layer if recomputes else 0  # the layer that is recomputed
    timeline.hold("activations", kept)
    timeline.mark("forward", "all layers")
    if model.vocab_size is not None and rank == layout.pipeline - 1:
        vocab = ceil_div(model.vocab_size, layout.tensor)
        # the standard loss has fp32 logits, log-probabilities and gradient: 3 x 4 bytes; fused ones half of it
        logits = tokens * vocab * (12 if job.loss.kind == "standard" else 6)
        earlier = gradients if job.gradient_accumulation_steps > 1 else 0
        timeline.hold("logits_and_loss", logits)
        timeline.hold("gradients", earlier)
        timeline.mark("backward", "gradient of the logits")
        timeline.release("logits_and_loss", logits)
        timeline.release("gradients", earlier)
    buckets = engine.buckets + _own_part(engine)
    timeline.hold("gradients", gradients + buckets)
    timeline.hold("activations", transient)
    if layout.pipeline == 1 and job.gradient_accumulation_steps == 1:
        # gradients appear while activations go: taken is the moment at which half of the activations are left
        timeline.release("activations", kept // 2)
        timeline.mark("backward", "half-way through the layers")
        timeline.hold("activations", kept // 2)
    else:
        timeline.mark("backward", "first layer to run backward")
    timeline.release("activations", kept + transient)
    timeline.release("gradients", buckets)


def _optimize(job: TrainingJob, share: RoughPart, timeline: Timeline) -> None:
    """Count the optimizer's step of one rank on the timeline, with the copies of gradients that an engine makes."""
    own_gradients = _own_part(share.engine)
    if own_gradients:
        timeline.release("gradients", share.gradients)
        timeline.hold("gradients", own_gradients)
    weights = LocalTensor("weights", (share.parameters,), True, matrix=True)
    updated = ceil_div(share.parameters, sharding(job).optimizer)
    optimizer = job.optimizer
    copies = step_temporaries(
        [(weights, updated)], optimizer.name, optimizer.implementation, job.recipe.optimizer_states
    )
    timeline.hold("temporaries", copies + share.engine.step_temporaries)
    timeline.mark("optimizer", f"{optimizer.name} step")


def _own_part(engine: EngineBuffers) -> int:
    """Return the bytes of the rank's own share of gradients under ZeRO-1; 0 under other stages.

    ZeRO-1 has them in addition to the gradients of the whole model, which are freed once they are reduced.
    """
    return engine.partition if engine.whole_gradients else 0
