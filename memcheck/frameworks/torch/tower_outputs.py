"""What the model's output carries of a tower: its last rows, with the graph of layers that nothing reads, and the image
tokens.

transformers 5.24 has them all in it (modeling_outputs.py, ``MultimodalCausalLMOutputWithPast.image_outputs``), which
the model's forward refers to until the loss is there, and the training loop as long as it has the logits. Before it,
the output had the image tokens alone (``image_hidden_states``).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.unit import Unit
from memcheck.autograd import Value
from memcheck.frameworks.torch.ddp import buckets
from memcheck.frameworks.torch.step_options import StepOptions
from memcheck.frameworks.torch.step_parts import NamedRun
from memcheck.job.image_outputs import gives, has_outputs
from memcheck.job.types import TrainingJob
from memcheck.job.versions import version_of_models
from memcheck.models.vision import Vision


def gives_towers(job: TrainingJob, vision: Vision) -> bool:
    """Whether the output carries all of it."""
    profile = job.framework
    if not has_outputs(vision, profile):
        return False
    return gives(version_of_models(job, profile))


def stays(job: TrainingJob, vision: Vision) -> bool:
    """Whether what a tower has made lives until the loss is there."""
    return vision.to_loss or gives_towers(job, vision)


def with_towers(how: StepOptions, job: TrainingJob, vision: Vision) -> StepOptions:
    """How a step runs for a model with a tower."""
    return how._replace(towers_stay=stays(job, vision), sinks=sinks(job, vision))


def sinks(job: TrainingJob, vision: Vision) -> bool:
    """Whether DDP's function goes through trained layers after the features: they get no gradient, so that DDP has to
    be told to look for such.
    """
    trained = job.lora is not None or "vision" not in job.freeze
    return bool(vision.idle) and buckets(job).there and trained and gives_towers(job, vision)


def sunk(runs: Sequence[NamedRun]) -> list[NamedRun]:
    """The runs where DDP looks for parameters without gradients: a function of its own goes through all tensors of the
    model's output, so that graphs that nothing else reads live as long as the loss's (torch 2.13
    nn/parallel/distributed.py, ``_DDPSink``).
    """
    found = []
    for run in runs:
        unit = run.unit
        if unit.kind == "idle":
            unit = unit._replace(
                fresh=unit.fresh._replace(lingers=unit.fresh.returned),
                again=unit.again._replace(lingers=unit.again.returned),
            )
        found.append(run._replace(unit=unit))
    return found


def kept_unit(job: TrainingJob, vision: Vision, unit: Unit) -> Unit:
    """A layer that nothing reads, whose graph the training loop's variable of the output may refer to."""
    if not (job.loss.keep_logits and gives_towers(job, vision)):
        return unit
    fresh, again = (curve._replace(lingers=curve.lingers + curve.returned) for curve in (unit.fresh, unit.again))
    return unit._replace(fresh=fresh, again=again)


def given(values: list[Value]) -> tuple[list[Value], int]:
    """The values once more, so that what they refer to stays, and its bytes, each storage once."""
    held = {v.storage.key: Value(v.storage, v.shape, v.dtype) for v in values if v.storage is not None}
    return list(held.values()), sum(v.storage.bytes for v in held.values() if v.storage is not None)
