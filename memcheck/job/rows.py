"""How the rows of a micro-batch lie, and whether attention is given a mask of each."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.profile import Profile
from memcheck.models.padding import maskable, unpaddable
from memcheck.models.types import Architecture, Rough

MASKED = ("sdpa", "eager")
"""Attentions that are given a mask, whose memory model is known."""


def unmodelled(
    rows: str, architecture: Architecture | Rough | None, framework: Profile, attention: str, context: int
) -> str:
    """What has no memory model for such rows; empty where there is one. ``context``: the degree."""
    if not framework.pads:
        return framework.title
    unpads = attention == "flash" and rows == "padded"
    if attention not in MASKED and not unpads:
        return f"attention `{attention}`"
    if not isinstance(architecture, Architecture) or not maskable(architecture):
        return "this model's attention"
    if unpads and not unpaddable(architecture):
        return f"attention `{attention}`"
    return "context parallelism" if context > 1 else ""


def rows_of_texts(
    architecture: Architecture, framework: Profile, attention: str, context: int, defaults: Defaults
) -> str:
    """How rows lie that are texts of many lengths, where nobody states it: an encoder's, and those that a head scores.
    Nothing packs them: transformers' collators pad them to the longest of a micro-batch and hand out a mask
    (``data/data_collator.py``, DataCollatorForSeq2Seq and DataCollatorWithPadding, which its Trainer takes by itself;
    trl ``trainer/reward_trainer.py``, DataCollatorForPreference; sentence-transformers' tokenizers). Words to be
    guessed may be cut out of whole texts, as its ``run_mlm.py`` does: in a loop without that collator rows are full.
    """
    key = "training.sequences"
    if architecture.encoder is None and architecture.task is None and not framework.collates:
        why = "the loop's own loader stacks rows of one length; `padded` if they come with a mask"
        return defaults.take(key, None, "packed", why)
    what = unmodelled("padded", architecture, framework, attention, context)
    if what:
        return defaults.take(key, None, "packed", f"padded rows under {what} are priced as full ones")
    what = "scored texts" if architecture.task is not None else "what encoders read"
    why = f"{what}: rows of many lengths; `packed` if every row is full"
    return defaults.take(key, None, "padded", why)
