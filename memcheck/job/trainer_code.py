"""The code that computes an objective's loss, by trainer and version."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.objective_types import COMPARED, DISTILLED, LLAMA_FACTORY, MS_SWIFT, OPEN_INSTRUCT, PIECEWISE
from memcheck.job.types import Checkpointing
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

OWN_LOSSES = {
    "llama-factory": (*COMPARED, "orpo", "simpo"),
    "ms-swift": (*COMPARED, "orpo", "simpo", "cpo", "reward"),
    "open-instruct": ("dpo", "simpo"),
}
"""Trainers with losses of their own, each with the objectives whose losses have a model here."""
OWN_CODE = {
    LLAMA_FACTORY: OWN_LOSSES[LLAMA_FACTORY],
    MS_SWIFT: COMPARED,
    OPEN_INSTRUCT: OWN_LOSSES[OPEN_INSTRUCT],
}
"""Objectives whose loss each trainer computes in code of its own. For its other objectives ms-swift passes the outputs
of its forward to TRL's functions (``rlhf_mixin.py``).
"""
CHUNKS_BY_DEFAULT = (1, 7)
"""The first TRL whose supervised loss is ``chunked_nll`` by default (``sft_config.py``)."""
NARROW_CHUNKS = (1, 13)
"""The first whose chunks leave the head in the dtype of the hidden states (``sft_trainer.py``, ``_chunk``)."""
FUSED_HEAD = (1, 15)
"""The first TRL whose log-probabilities come from a fused head (``add_fused_lm_head``)."""
NEWER, OLDER = "trl-0.29", "trl-0.24"
FUSED = "trl-1.15"
TRL_BETA = {"gkd": 0.5, "distill": 1.0}
OF_EVERY_VERSION = ("orpo", "simpo", "cpo")
"""Objectives whose losses are the same lines in every version, from 1.15 on too (``trl/experimental``)."""


def trainer_code(
    training: plan_types.TrainingSpec,
    name: str,
    who: str,
    version: str | None,
    architecture: Architecture | Rough,
    checkpointing: Checkpointing,
    defaults: Defaults,
) -> str:
    """The code that computes the loss. Empty: the model's own."""
    key = "training.trainer.version"
    if name == "sft":
        return _supervised(training.loss, who, _numbers(version), defaults)
    if name in OWN_CODE.get(who, ()):
        return who
    if name in OF_EVERY_VERSION or name == "reward":
        return NEWER
    if name in DISTILLED:
        return _distilling(name, _numbers(version), defaults)
    numbers = _numbers(version) if who == "trl" else None
    if numbers is None:
        code = _worst(name, architecture, checkpointing)
        defaults.note(key, f"as of TRL {code.partition('-')[2]}", "unknown: the lines that need most memory")
        return code
    if numbers >= FUSED_HEAD:
        return FUSED
    if name in ("dpo", "ipo") and (0, 15) <= numbers < (0, 29):
        return OLDER
    if numbers[0] == 1 or numbers < (0, 24):
        why = "these lines differ from version to version, and keep no more than TRL 0.29's"
        defaults.note(key, "as of TRL 0.29", why)
    return NEWER


def _supervised(loss: plan_types.LossSpec | None, who: str, numbers: tuple[int, int] | None, defaults: Defaults) -> str:
    """TRL's next-token loss: of whole logits, in chunks of tokens, or of a fused head, which any loss is since 1.15."""
    kind = loss.kind if loss is not None else None
    chunked = kind == "chunked" and (loss is None or loss.chunks is None)
    if who != "trl" or not (chunked or kind in (None, "standard")):
        return ""  # with Liger's loss there are no logits whose metrics could be taken
    if numbers is not None and numbers >= FUSED_HEAD:
        return FUSED
    if chunked or (kind is None and numbers is not None and numbers >= CHUNKS_BY_DEFAULT):
        if numbers is None:
            defaults.note("training.trainer.version", "as of TRL 1.7", "unknown: the chunks that need most memory")
        return PIECEWISE[numbers is not None and numbers >= NARROW_CHUNKS]
    if numbers is None:
        why = "unknown: whole logits; in chunks by default since 1.7, by a fused head since 1.15"
        defaults.note("training.trainer.version", "as of TRL 0.29", why)
    return NEWER


def _distilling(name: str, numbers: tuple[int, int] | None, defaults: Defaults) -> str:
    """GKD scores completions alone before TRL 1.0, and whole rows since; a distillation trainer came with its tiles."""
    if name == "gkd" and numbers is not None and numbers < (1, 0):
        return NEWER
    if numbers is None or numbers < FUSED_HEAD:
        defaults.note("training.trainer.version", "as of TRL 1.16", "the lines that need most memory")
    return FUSED


def _worst(name: str, architecture: Architecture | Rough, checkpointing: Checkpointing) -> str:
    """The lines that need most memory where the version is unknown.

    TRL 0.29 keeps at least six bytes more of every logit than TRL 0.24, which asks for the hidden states of all layers:
    those are the inputs that recomputed layers keep anyway.
    """
    if name not in ("dpo", "ipo") or checkpointing.mode == "full" or not isinstance(architecture, Architecture):
        return NEWER
    states = 2 * architecture.hidden_size * (architecture.num_layers + 1)
    return OLDER if states > 6 * architecture.vocab_size else NEWER


def _numbers(version: str | None) -> tuple[int, int] | None:
    if not version:
        return None
    import re

    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return None if found is None else (int(found[1]), int(found[2] or 0))
