"""Which of PyTorch's behaviours a step has, where its versions take different amounts of memory.

Up to 2.14 FSDP2 copies the gradients of a micro-batch that does not synchronise into the reduce dtype, and pipelining
allocates every receive buffer before the first step. From 2.15 on autograd itself casts those gradients
(``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``, ``_set_unsharded_grad_dtypes``). Pipelining allocates a
buffer with each receive and frees sent outputs (``pipelining/stage.py``). FSDP2's forward frees the last gathered
buffer before it copies the next one out (``wait_for_unshard``).
"""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.framework import Framework
from memcheck.job.types import DTYPE_BYTES, TORCH_2_13, TORCH_2_15, Recipe, TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan import types as plan_types

FIRST = ((TORCH_2_15, (2, 15)), (TORCH_2_13, (0, 0)))
"""Each behaviour with the first version that has it, the latest first."""
ALL = (TORCH_2_13, TORCH_2_15)


def resolve_torch(
    training: plan_types.TrainingSpec, job: TrainingJob, framework: Framework, defaults: Defaults
) -> tuple[str, ...]:
    """The behaviours to price, of which the one that needs most counts."""
    stated = training.torch_version
    if stated is None and framework.own_loop:
        stated = training.framework_version
    found = behaviour(stated)
    if not differs(job, framework):
        # all that is left is the order in which FSDP2's forward lets go of a buffer: the older one never needs less
        return (found or TORCH_2_13,)
    if found is not None:
        return (found,)
    defaults.note("training.torch_version", f"{ALL[0]} to {ALL[-1]}", "unknown: whichever needs more memory")
    return ALL


def behaviour(version: str | None) -> str | None:
    """How a version behaves; None for what is no version of PyTorch 1 or 2."""
    if not version:
        return None
    import re

    match = re.match(r"([12])\.(\d+)", version)
    if match is None:
        return None
    return next(name for name, first in FIRST if (int(match[1]), int(match[2])) >= first)


def differs(job: TrainingJob, framework: Framework) -> bool:
    """Whether one version takes more memory for some of these steps and another one for others."""
    layout = job.layout
    if framework.data_parallel != "torch":
        return False
    if layout.pipeline > 1:
        return True
    if layout.zero_stage < 2 or not reduces_wider(job.recipe):
        return False
    if layout.gradient_sync == "last" and job.gradient_accumulation_steps > 1:
        return True
    return job.loss.kind == "chunked" and not framework.fsdp2.loss_reduces_head


def reduces_wider(recipe: Recipe) -> bool:
    """Whether gradients are reduced in a wider dtype than they are computed in."""
    return DTYPE_BYTES[recipe.reduce] > DTYPE_BYTES[recipe.compute]


def ends_apart(job: TrainingJob, framework: Framework) -> bool:
    """Whether embedding and head are groups of their own.

    By the framework, or by torchtune's list of layers that it shards apart; a head that reads the embedding's table is
    no module there (torchtune/modules/tied_linear.py).
    """
    if framework.fsdp2.groups_of_ends or job.carves_ends:
        return True
    architecture, named = job.architecture, job.option("custom_sharded_layers", ())
    tied = isinstance(architecture, Architecture) and architecture.tie_word_embeddings
    return not tied and isinstance(named, tuple) and {"tok_embeddings", "output"} <= set(named)


def resolve_expandable(training: plan_types.TrainingSpec, framework: Framework, defaults: Defaults) -> bool:
    """The allocator's setting, with a note where the framework's steps were measured with the other one only."""
    key = "training.expandable_segments"
    why = f"what {framework.name}'s launcher sets"
    chosen = defaults.take(key, training.expandable_segments, framework.expandable, why)
    if ("expandable" if chosen else "default") not in framework.allocators:
        defaults.note(key, chosen, f"fragmentation as without: no step of {framework.name} was measured with it")
    return chosen
