"""The tower in a forward pass without gradients, which encodes every row's pictures a second time."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import rounded_bytes
from memcheck.frameworks.torch.towers import side_units
from memcheck.job.images import pictures_of
from memcheck.job.types import Checkpointing, TrainingJob
from memcheck.models.types import Architecture

EVERY_PART = ("vision", "projector", "language")


def seen_again(job: TrainingJob, a: Architecture, setting: Setting) -> tuple[int, int, int]:
    """Bytes of the tower in the forward pass of another model: its highest point, including the looked-up rows; what
    the model's variables keep alive while the text layers run; and the image tokens in the model's output, which are
    part of the second figure. All are 0 without pictures.
    """
    vision = a.vision
    if vision is None or not pictures_of(job, vision).rows:
        return 0, 0, 0
    frozen = job._replace(
        architecture=a, method="full", lora=None, freeze=EVERY_PART, checkpointing=Checkpointing(), companions=()
    )
    found = side_units(frozen, a, vision, setting, rows_grad=False, adds=False, inventory=False)
    held = rounded_bytes((job.rows * job.sequence_length, a.hidden_size), setting.params)
    highest = kept = 0
    for unit, times, _ in found.runs:
        curve = unit.fresh
        highest = max(highest, held + curve.forward.bytes)
        held += curve.returned * times
        if unit.kind == "merger":
            kept += curve.returned * times
        elif unit.kind == "projector":
            kept += curve.returned + curve.freed_input
    tokens = rounded_bytes((pictures_of(job, vision).tokens, a.hidden_size), setting.params)
    return highest, kept, tokens if vision.gives_out else 0
