"""Which modules FSDP makes units of, in addition to the root."""

from __future__ import annotations

from typing import Any

from torch import nn

from memcheck.frameworks.torch.step_options import wrapped_kinds
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.model import base_of, blocks_of, encoder_blocks_of


def units_of(model: nn.Module, job: TrainingJob, architecture: Architecture) -> list[nn.Module]:
    """The modules, inner ones first.

    Of a model of text its layers, if its class names them. Of one of pictures Accelerate takes every module of a class
    that the model's or its parts' ``_no_split_modules`` name (accelerate 1.15 utils/fsdp_utils.py,
    ``fsdp2_prepare_auto_wrap_policy``; it stops at a name that no module has, which is then left out of the list by
    hand); a loop of one's own takes the layers of every stack.
    """
    if architecture.vision is None:
        layers = [*encoder_blocks_of(model, architecture), *blocks_of(model, architecture)]
        return layers if wrapped_kinds(job) else []
    inner_first = list(model.modules())[:0:-1]
    if job.framework.wraps_classes:
        base: Any = base_of(model)
        names = set(base._no_split_modules or ())  # noqa: SLF001
        kinds = tuple({type(module) for module in inner_first if type(module).__name__ in names})
        return [module for module in inner_first if isinstance(module, kinds)]
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in inner_first if isinstance(module, GradientCheckpointingLayer)]
