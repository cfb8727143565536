"""The rough model: parameters, layers, hidden size and an activation multiplier, when nothing else is known.

Activations per layer = batch x sequence x hidden x multiplier x bytes of the compute dtype; full recompute keeps one
hidden state per layer. The estimate is as good as the multiplier (8 to 12 are typical for a transformer with flash
attention), and the interval says so.
"""

from __future__ import annotations

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes
from memcheck.accounts.timeline import Timeline
from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.optimizer import step_temporaries
from memcheck.frameworks.torch.pipelining import in_flight
from memcheck.frameworks.torch.resting import sharding
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Rough


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


def _rank(job: TrainingJob, model: Rough, rank: int) -> RankEstimate:
    layout, recipe, cut = job.layout, job.recipe, sharding(job)
    local = -(-model.parameters // (layout.tensor * layout.pipeline))
    layers = -(-model.layers // layout.pipeline)
    compute = DTYPE_BYTES[recipe.compute]
    tokens = job.micro_batch_size * -(-job.sequence_length // layout.context)
    boundary = tokens * model.hidden_size * compute
    per_layer = int(boundary * model.activation_multiplier) // layout.tensor
    timeline = Timeline()
    timeline.hold("parameters", rounded(-(-local // cut.parameters) * DTYPE_BYTES[recipe.params]))
    mine = -(-local // cut.optimizer)
    if recipe.master != "none":
        timeline.hold("master_weights", rounded(mine * DTYPE_BYTES[recipe.master]))
    weights = LocalTensor("weights", (local,), True, matrix=True)
    state_of = LocalTensor("weights", (mine,), True, matrix=True)
    states = optimizer_state_bytes(state_of, mine, job.optimizer.name, recipe.optimizer_states)
    timeline.hold("optimizer_states", states)
    timeline.mark("init", "states at rest")
    gradients = rounded(-(-local // cut.gradients) * DTYPE_BYTES[recipe.gradients])
    if cut.parameters > 1:
        timeline.hold("communication_buffers", rounded(2 * -(-local // layers) * compute))
    kept = layers * (boundary if job.checkpointing.mode == "full" else per_layer)
    kept = int(kept * in_flight(rank, layout, job.gradient_accumulation_steps))
    transient = per_layer if job.checkpointing.mode == "full" else 0
    timeline.hold("activations", kept)
    timeline.mark("forward", "all layers")
    if model.vocab_size is not None and rank == layout.pipeline - 1:
        vocab = -(-model.vocab_size // layout.tensor)
        logits = tokens * vocab * (12 if job.loss.kind == "standard" else 6)
        timeline.hold("logits_and_loss", logits)
        if job.gradient_accumulation_steps > 1:
            timeline.hold("gradients", gradients)
        timeline.mark("backward", "gradient of the logits")
        timeline.release("logits_and_loss", logits)
        if job.gradient_accumulation_steps > 1:
            timeline.release("gradients", gradients)
    timeline.hold("gradients", gradients)
    timeline.hold("activations", transient)
    if layout.pipeline == 1 and job.gradient_accumulation_steps == 1:
        # gradients appear while activations go; without knowing the layers, half of them are taken to be left
        timeline.release("activations", kept // 2)
        timeline.mark("backward", "half-way through the layers")
        timeline.hold("activations", kept // 2)
    else:
        timeline.mark("backward", "first layer to run backward")
    timeline.release("activations", kept + transient)
    temporaries = step_temporaries(
        [(weights, mine)], job.optimizer.name, job.optimizer.implementation, recipe.optimizer_states
    )
    timeline.hold("temporaries", temporaries)
    timeline.mark("optimizer", f"{job.optimizer.name} step")
    return RankEstimate(rank, timeline.instants(), local)
