"""Which parts of a model a job trains, ties, hooks and recomputes."""

from __future__ import annotations

from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, PegasusModel

LAYERS = "layers:"
"""What begins a range of layers; the schema checks the two numbers after it."""
WORDS = ("embed", "head", "norm", "vision", "projector", "language", "audio", "encoder")
"""Words of ``training.freeze`` that are no module patterns."""

TABLE, HEAD = "embed_tokens", "lm_head"
"""Modules that ``modules_to_save`` may name."""


def module_patterns(freeze: tuple[str, ...]) -> tuple[str, ...]:
    """What of ``training.freeze`` names modules."""
    return tuple(f for f in freeze if f not in WORDS and ":" not in f)


def frozen_layers(freeze: tuple[str, ...]) -> set[int]:
    """Return the numbers of the layers that patterns such as ``layers:0-3`` in ``freeze`` name."""
    frozen: set[int] = set()
    for pattern in freeze:
        if pattern.startswith(LAYERS):
            first, _, last = pattern.removeprefix(LAYERS).partition("-")
            frozen.update(range(int(first), int(last)))
    return frozen


def recompute_mode(job: TrainingJob, layer: int) -> str:
    """Return how one layer is recomputed: ``none``, ``selective``, ``full``, or ``parts:`` and the names of its
    modules.
    """
    checkpointing = job.checkpointing
    if checkpointing.mode == "none" or (checkpointing.every_n_layers > 1 and layer % checkpointing.every_n_layers):
        return "none"
    if checkpointing.modules and job.framework.checkpointed_parts:
        return f"parts:{','.join(checkpointing.modules)}"
    return checkpointing.mode


def is_hooked(job: TrainingJob, architecture: Architecture) -> bool:
    """Return whether the looked-up rows are made to require a gradient (``enable_input_require_grads``).

    A script asks for it before reentrant checkpoints. transformers 5.23 does so by itself for every model whose main
    input is ``input_ids`` (modeling_utils.py, ``activation_checkpointing_enable``), and for towers. peft does so in any
    version.
    """
    words = (
        architecture.encoder is None or not architecture.encoder.channels
    )  # a model of sounds has another main input
    hooks = (words and job.framework.runs_transformers) or job.base_format == "int8"
    recompute = job.checkpointing  # parts of layers are wrapped by a script, which asks for nothing
    return recompute.mode != "none" and (recompute.reentrant or (hooks and not recompute.modules))


def is_tied(architecture: Architecture, tensor: int) -> bool:
    """Whether head and embedding are one tensor on a rank: parallelize_module unties them (two DTensors)."""
    return architecture.tie_word_embeddings and tensor == 1


def is_table_frozen(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether ``freeze`` names the embedding, or the head that is the same tensor."""
    return "embed" in job.freeze or (architecture.tie_word_embeddings and "head" in job.freeze)


def leaves_beside(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether only the table is frozen, as a tied head: the positions, types and norms around it are trained."""
    return is_table_frozen(job, architecture) and "embed" not in job.freeze


def has_tensors_beside(architecture: Architecture) -> bool:
    """Say whether trained tensors other than the table contribute to the first layer's input."""
    norm = architecture.embedding_norm is not None
    positions = architecture.learned_positions > 0 and not isinstance(architecture, PegasusModel)
    return norm or positions or architecture.embedding_module.token_types > 0 or architecture.per_layer is not None


def is_head_frozen(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether ``freeze`` names the head, or the embedding that is the same tensor when the parts are frozen."""
    return "head" in job.freeze or (architecture.tie_word_embeddings and "embed" in job.freeze)
