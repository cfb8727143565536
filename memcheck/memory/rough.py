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
from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.deepspeed.engine import EngineBuffers
from memcheck.frameworks.torch.optimizer import step_temporaries
from memcheck.frameworks.torch.pipelining import in_flight
from memcheck.frameworks.torch.resident import engine_of, sharding
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Rough
from memcheck.record import Record


def rough_ranks(job: TrainingJob) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank."""
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
    """What one pipeline rank has of a rough model."""

    parameters: int
    """How many a pipeline rank has, before data-parallel ranks divide them."""
    layers: int
    engine: EngineBuffers
    """What an engine around the model lays out; all zero without one."""
    gradients: int
    """Bytes that backward leaves for the optimizer, in addition to the engine's resident buffers."""


def _rank(job: TrainingJob, model: Rough, rank: int) -> RankEstimate:
    """Estimate one pipeline rank of a rough model: its states, forward and backward, and the optimizer's step."""
    layout = job.layout
    local, layers = -(-model.parameters // (layout.tensor * layout.pipeline)), -(-model.layers // layout.pipeline)
    layer = LocalTensor("weights", (-(-local // layers),), True, matrix=True)
    laid_out = engine_of(job, [(layer,)] * layers, recomputes=True)
    engine = laid_out if isinstance(laid_out, EngineBuffers) else EngineBuffers()
    gradients = rounded(-(-local // sharding(job).gradients) * DTYPE_BYTES[job.recipe.gradients])
    share = RoughPart(parameters=local, layers=layers, engine=engine, gradients=0 if engine.gradients else gradients)
    timeline = Timeline()
    _rest(job, share, timeline)
    _walk(job, model, share, timeline, rank)
    _optimize(job, share, timeline)
    return RankEstimate(rank, timeline.instants(), local)


def _rest(job: TrainingJob, share: RoughPart, timeline: Timeline) -> None:
    """Hold what is resident between steps: parameters, master weights, optimizer states, and an engine's buffers."""
    recipe, cut, engine = job.recipe, sharding(job), share.engine
    timeline.hold("parameters", rounded(-(-share.parameters // cut.parameters) * DTYPE_BYTES[recipe.params]))
    mine = -(-share.parameters // cut.optimizer)
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
    """Forward, the logits, and the highest moment of backward."""
    layout, layers, engine, gradients = job.layout, share.layers, share.engine, share.gradients
    compute = DTYPE_BYTES[job.recipe.compute]
    tokens = job.micro_batch_size * -(-job.sequence_length // layout.context)
    boundary = tokens * model.hidden_size * compute
    per_layer = int(boundary * model.activation_multiplier) // layout.tensor
    if sharding(job).parameters > 1:
        ahead = 2 * -(-share.parameters // layers) * compute
        timeline.hold("communication_buffers", rounded(max(ahead, engine.live_parameters)))
    kept = layers * (boundary if job.checkpointing.mode == "full" else per_layer)
    kept = int(kept * in_flight(rank, layout, job.gradient_accumulation_steps))
    transient = per_layer if job.checkpointing.mode == "full" else 0
    timeline.hold("activations", kept)
    timeline.mark("forward", "all layers")
    if model.vocab_size is not None and rank == layout.pipeline - 1:
        vocab = -(-model.vocab_size // layout.tensor)
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
        # gradients appear while activations go; without knowing the layers, half of them are taken to be left
        timeline.release("activations", kept // 2)
        timeline.mark("backward", "half-way through the layers")
        timeline.hold("activations", kept // 2)
    else:
        timeline.mark("backward", "first layer to run backward")
    timeline.release("activations", kept + transient)
    timeline.release("gradients", buckets)


def _optimize(job: TrainingJob, share: RoughPart, timeline: Timeline) -> None:
    """The optimizer's step, with the copies of gradients that an engine makes for it."""
    own_gradients = _own_part(share.engine)
    if own_gradients:
        timeline.release("gradients", share.gradients)
        timeline.hold("gradients", own_gradients)
    weights = LocalTensor("weights", (share.parameters,), True, matrix=True)
    updated = -(-share.parameters // sharding(job).optimizer)
    optimizer = job.optimizer
    copies = step_temporaries(
        [(weights, updated)], optimizer.name, optimizer.implementation, job.recipe.optimizer_states
    )
    timeline.hold("temporaries", copies + share.engine.step_temporaries)
    timeline.mark("optimizer", f"{optimizer.name} step")


def _own_part(engine: EngineBuffers) -> int:
    """Under ZeRO-1 the rank's own gradients, in addition to the whole model's, which go once they are reduced."""
    return engine.partition if engine.whole_gradients else 0
