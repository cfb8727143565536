"""What a trainer optimizes, and the kernels that its loss and layers run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.configs.draft import Draft, speaks
from memcheck.configs.trainer_parts import architecture_named, known_architecture, on, same_dimensions, say, text
from memcheck.errors import MemcheckError
from memcheck.families.architecture import architecture_of
from memcheck.frameworks.transformers.liger import modelled
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec

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
        draft.note(path, "estimated with the dimensions of the model that is trained")


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


KEY = "training.kernels.liger"
UPPER = "Liger's other kernels keep less than transformers' own: an upper bound"


def liger_kernels(draft: Draft, paths: Mapping[str, str]) -> None:
    """Set the kernels that memcheck prices, and note the others. ``paths``: the config's key by kernel.

    The model, the layout and ``torch.compile`` have been read. Liger leaves families that it does not know alone.
    """
    able = _able(draft)
    found = [name for name in paths if name in able]
    if found:
        draft.set(KEY, found, paths[found[0]])
    for path in dict.fromkeys(paths.values()):
        draft.config.see(path)
        if any(at == path and name not in able for name, at in paths.items()):
            draft.note(path, UPPER)


def _able(draft: Draft) -> tuple[str, ...]:
    name, tensor = draft.value("model.name"), draft.value("parallelism.tensor")
    if not isinstance(name, str) or draft.value("training.compile") or (isinstance(tensor, int) and tensor > 1):
        return ()
    try:
        found = architecture_of(ModelSpec(name=name))
    except MemcheckError:
        return ()
    return modelled(found) if isinstance(found, Architecture) else ()
