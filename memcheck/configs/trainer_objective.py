"""What a trainer optimizes: preferences double the rows and may need a second model, rewards another head."""

from __future__ import annotations

import re

from memcheck.configs.contract import speaks
from memcheck.configs.draft import Draft
from memcheck.configs.trainer_frozen import architecture_named, known_architecture, same_dimensions
from memcheck.configs.trainer_parts import on, say, text

REFERRED = ("dpo", "ipo", "kto")
"""Objectives that compare with a reference model."""


def trainer(draft: Draft, name: str) -> None:
    """Whose loss and loop run, and which release, where it was stated."""
    if speaks("training.trainer.name", name):
        draft.derive("training.trainer.name", name, f"the config is {draft.title}'s")


def chosen_apart(draft: Draft, path: str) -> None:
    """Refuse a loss of the chosen rows in addition to TRL's DPO loss: ``sft`` in ``loss_type``, or ``rpo_alpha``."""
    written = draft.config.take(path)
    if written is not None and (path == "rpo_alpha" or re.search(r"\bsft\b", str(written))):
        message = f"`{path}`: a cross entropy of the chosen rows, on a copy of their logits, has no memory model here"
        draft.refuse(path, message, keys=("training.objective",))


def weighted(draft: Draft, path: str) -> None:
    """WPO's weights of pairs (TRL ``trainer/dpo_trainer.py``, use_weighting)."""
    if on(draft, path):
        message = f"`{path}`: weights that are worked out of all probabilities have no memory model here"
        draft.refuse(path, message, keys=("training.objective",))


def _reference(draft: Draft, path: str) -> None:
    """A model of its own: of the policy's dimensions, as a plan's is, or refused."""
    own, other = architecture_named(draft), known_architecture(text(draft, path))
    if own is not None and other is not None and not same_dimensions(own, other):
        message = f"`{path}`: a reference of other dimensions than the model's has no memory model here"
        draft.refuse(path, message, keys=("training.reference",))
        return
    draft.set("training.reference", "resident", path)
    if other is None:
        draft.note(path, "priced with the dimensions of the model that is trained")


def objective(
    draft: Draft, kind: str, path: str, *, precomputed: str = "", prompt: str = "", reference: str = ""
) -> None:
    """``training.objective`` and what it compares with.

    ``precomputed`` is the switch for log-probabilities that are computed once, ``prompt`` the key of a prompt's length,
    ``reference`` the key of a reference model of its own.
    """
    if not say(draft, "training.objective.name", kind, path):
        return
    if kind in REFERRED:
        adapted = draft.value("training.method") in ("lora", "qlora")
        if precomputed and on(draft, precomputed):
            draft.set("training.reference", "precomputed", precomputed)
        elif reference and draft.config.has(reference):
            _reference(draft, reference)
        elif adapted:
            draft.assume("training.reference", "adapter-off", "the base without its adapters is the reference")
        else:
            draft.assume("training.reference", "resident", "a second copy of the model is the reference")
    if kind == "reward":
        say(draft, "training.head", "reward", path)
    if prompt and draft.config.has(prompt):
        length = draft.whole(prompt, "training.objective.prompt_length")
        if length:
            draft.set("training.objective.prompt_length", length, prompt)
    draft.config.see(*filter(None, (precomputed, prompt, reference)))
