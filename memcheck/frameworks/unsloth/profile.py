"""unsloth, which runs transformers' Trainer: what it replaces, by release.

Sources: unslothai/unsloth 015bdef0 (2026.8.19) ``models/llama.py``, ``models/loader.py``, ``models/vision.py``,
``kernels``; unslothai/unsloth-zoo ce232d6c (2026.8.13) ``gradient_checkpointing.py``, ``fused_losses``,
``training_utils.py``. Their history has the month in which each of them came.
"""

from __future__ import annotations

from memcheck.frameworks.transformers import profile as trainer
from memcheck.frameworks.unsloth.layers import COMPILED, FORMER, OWN
from memcheck.job.framework import Adapters, Framework, Losses, Parallelism, TrainerPackage
from memcheck.job.versions import is_before
from memcheck.models.types import Architecture, Rough
from memcheck.models.variants import unfused

OWN_CLASSES = ("gemma", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""Model types whose layers unsloth writes itself, and that have a memory model (``models/loader.py``). Its copies of
Phi 3 and 4 are Llama models (``models/mapper.py``). All others run transformers' classes, under ``torch.compile``.
"""
OWN_LOSSES = (*OWN_CLASSES, "cohere", "gemma2", "granite")
"""Model types whose loss unsloth's own class computes."""
CUT_SINCE, FUSED_SINCE, COMPILED_SINCE, PIECES_SINCE = (2024, 11, 7), (2025, 8), (2026, 5), (2026, 7)
"""First releases with Apple's cut cross-entropy, with a fused loss of its own, with that put into transformers'
classes, and with pieces of it whose logits are at most 4 GiB. Before that they may be half of the free memory.
"""
LOSSES = ("chunked", "fused-linear", "in-place", "standard")
ONE_TABLE_SINCE = (2025, 1, 1)
"""The first release whose layers share cos and sin, where transformers is 4.48 or newer (IS_ATTENTION_REFACTOR)."""
EXPANDABLE_SINCE = (2024, 3, 17)
"""The day since which PYTORCH_CUDA_ALLOC_CONF is set as unsloth is imported."""
PREPARES = "unsloth's own prepare_model_for_training widens the adapters alone (unsloth_zoo training_utils.py)"
DYNAMIC_SINCE, DYNAMIC = (2024, 12), 0.18
"""Since when unsloth loads checkpoints of its own, which keep some matrices in 16 bits, and by what share of live bytes
they were larger: Phi 4 by 0.12, Qwen3 14B by 0.17 (memory after the load that its notebooks print)."""


class UnslothPackage(TrainerPackage):
    """unsloth's preparation of the model, and its checkpoints."""

    __slots__ = ()

    @property
    def kbit_casts_undone(self) -> str:
        """Why norms, embeddings and head stay in 16 bits: nothing casts them."""
        return PREPARES

    def mixed_checkpoints(self, version: str | None) -> float:
        """Return the share of live bytes that 16-bit matrices add; 0.0 before 2024.12."""
        return 0.0 if is_before(version, DYNAMIC_SINCE) else DYNAMIC


UNSLOTH = UnslothPackage()


class Unsloth(trainer.Trainer):
    """transformers' Trainer, whose model unsloth has loaded."""

    @property
    def variants(self) -> tuple[str, ...]:
        """None."""
        return ()

    def package_named(self, name: str) -> TrainerPackage:
        """Return unsloth's code, the one package that this profile is of."""
        del name
        return UNSLOTH

    def chunks(self, loss: str) -> bool:
        """Return no number: the code chooses into how many pieces its loss divides the rows."""
        del loss
        return False

    def built(self, architecture: Architecture) -> Architecture:
        """Return the model with separate matrices for query, key, value, gate and up: unsloth's copies of Phi have
        them.
        """
        return unfused(architecture) if architecture.model_type == "phi3" else architecture

    @property
    def usual_checkpoints(self) -> tuple[str, str, str]:
        """``use_gradient_checkpointing="unsloth"``: inputs of layers wait on the host."""
        return "full", "cpu", "default of unsloth's get_peft_model and for_training"

    @property
    def always_reentrant(self) -> bool:
        """True: UnslothCheckpointFunction is torch's reentrant one, with buffers."""
        return True

    def of_release(self, version: str | None, classes: str | None, architecture: Architecture | Rough) -> Framework:
        """Return unsloth as of a release. ``version``: unsloth's; ``classes``: that of transformers. None: unknown, so
        as of 2026.8. The loss of releases before 2026.7 takes what is free, and so does not decide whether a job fits.
        """
        model_type = architecture.model_type if isinstance(architecture, Architecture) else ""
        own = model_type in OWN_CLASSES
        style = COMPILED
        if own:
            style = FORMER if is_before(version, ONE_TABLE_SINCE) or is_before(classes, (4, 48)) else OWN
        expandable_by_default = not is_before(version, EXPANDABLE_SINCE)
        return self._replace(
            style=style,
            losses=Losses(default=_loss(version, own=own or model_type in OWN_LOSSES), kinds=LOSSES),
            allocators=("expandable", "default") if expandable_by_default else ("default", "expandable"),
        )


def _loss(version: str | None, *, own: bool) -> str:
    """Return the kind of loss that a release computes.

    ``chunked``: in pieces of tokens; ``fused-linear``: in one; ``in-place`` or ``standard``: of all logits. Newer
    releases may use cut cross-entropy, which makes no logits; ``chunked`` is an upper bound of it. ``own``: the model's
    class is unsloth's.
    """
    if is_before(version, CUT_SINCE):
        return "in-place" if own else "standard"
    if not own and is_before(version, COMPILED_SINCE):
        return "standard"
    if is_before(version, FUSED_SINCE):
        return "chunked"
    return "fused-linear" if is_before(version, PIECES_SINCE) else "chunked"


FRAMEWORK = Unsloth(*trainer.FRAMEWORK)._replace(
    title="unsloth on transformers' Trainer",
    source="unsloth 2026.8.19, unsloth_zoo 2026.8.13",
    style=OWN,
    losses=Losses(default="chunked", kinds=LOSSES),
    # it warns of FSDP and DeepSpeed, and has no code for either; DDP divides nothing
    parallelism=Parallelism(zero_stages=(0,), gradient_sync_default="last"),
    adapters=Adapters(
        variants=("dropout", "dora", "modules_to_save"),
        base_formats=("nf4", "fp4", "int8"),
        can_target_head=True,
    ),
    objectives=("sft",),
    trainers=("unsloth",),
    # unsloth_zoo __init__.py
    allocators=("expandable", "default"),
)
