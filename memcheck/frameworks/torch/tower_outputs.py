"""What the model's output carries of a tower: its last rows, with the graph of layers that nothing reads, and the image
tokens.

transformers 5.24 has them all in it (modeling_outputs.py, ``MultimodalCausalLMOutputWithPast.image_outputs``), which
the model's forward refers to until the loss is there, and the training loop as long as it has the logits. Before it,
the output had the image tokens alone (``image_hidden_states``).
"""

from __future__ import annotations

from memcheck.accounts.unit import Unit
from memcheck.autograd import Value
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import TrainingJob
from memcheck.job.versions import is_before
from memcheck.models.vision import Vision

TRANSFORMERS = "transformers_version"
"""The option that states its version, where the framework's is another package's."""
GIVES = (5, 24)


def gives_towers(job: TrainingJob, vision: Vision) -> bool:
    """Whether the output carries all of it: of transformers' own classes, but for those that have none of their own
    (Phi-4), whose language model has a head inside (BLIP-2, Fuyu), or that read pictures by cross attention.
    """
    profile = FRAMEWORKS[job.framework]
    if not profile.style.makes_masks or vision.puts or vision.crosses or vision.wraps or vision.to_loss:
        return False
    version = job.framework_version if profile.versions_models else job.option(TRANSFORMERS)
    return not is_before(str(version) if version else None, GIVES)


def stays(job: TrainingJob, vision: Vision) -> bool:
    """Whether what a tower has made lives until the loss is there."""
    return vision.to_loss or gives_towers(job, vision)


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
