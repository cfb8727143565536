"""How the rows of a micro-batch lie, and whether attention is given a mask of each."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.profile import Profile
from memcheck.job.training import encodes
from memcheck.models.padding import maskable, unpaddable
from memcheck.models.types import Architecture, Rough

MASKED = ("sdpa", "eager")
"""Attentions that are given a mask, whose memory model is known."""
AS_FULL = "rows are taken as full; `padded` if a collator pads them to the longest of a micro-batch"
"""Why rows of texts are packed where the plan does not say how they lie."""


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
) -> tuple[str, bool]:
    """How rows lie that are texts of many lengths, where nobody states it, and whether they may be padded all the same:
    an encoder's, and those that a head scores.

    transformers' collators pad them to the longest of a micro-batch and hand out a mask (``data/data_collator.py``,
    DataCollatorForSeq2Seq and DataCollatorWithPadding, which its Trainer takes by itself; trl
    ``trainer/reward_trainer.py``, DataCollatorForPreference; sentence-transformers' tokenizers). What an encoder reads
    is taken as padded where the loop has such a collator. Other rows are full unless the plan says otherwise; what
    they need if they are padded is priced beside it.
    """
    key = "training.sequences"
    what = unmodelled("padded", architecture, framework, attention, context)
    if what:
        return defaults.take(key, None, "packed", f"padded rows under {what} are priced as full ones"), False
    if framework.collates and encodes(architecture):
        why = "what encoders read: rows of many lengths; `packed` if every row is full"
        return defaults.take(key, None, "padded", why), False
    return defaults.take(key, None, "packed", AS_FULL), True
