"""What Megatron-SWIFT does with a model's tower: it is frozen, and adapters leave it alone, unless the launch says not.

Source: ms-swift 4 ``swift/megatron/arguments/megatron_args.py`` (``freeze_llm`` false, ``freeze_vit`` and
``freeze_aligner`` true by default) and ``swift/megatron/utils/utils.py``.
"""

from __future__ import annotations

from memcheck.configs.draft import Draft
from memcheck.configs.pictures import NUMBER, named_data
from memcheck.configs.trainer_frozen import architecture_named
from memcheck.configs.trainer_parts import on

PARTS = {"freeze_vit": "vision", "freeze_aligner": "projector"}


def tower(draft: Draft) -> None:
    """Freeze the tower of a model that has one, and ask how many pictures a sample of such data has."""
    config, found = draft.config, architecture_named(draft)
    if found is None or (found.vision is None and not found.others):
        return
    adapters = draft.value("training.method") == "lora"
    key = "training.lora.parts" if adapters else "training.freeze"
    if config.has("freeze_llm") and on(draft, "freeze_llm"):
        draft.refuse("freeze_llm", "`freeze_llm`: a tower that is trained has no memory model here", keys=(key,))
        return
    for name in PARTS:
        if config.has(name) and not on(draft, name):
            draft.refuse(name, f"`{name}: false`: a tower that is trained has no memory model here", keys=(key,))
            return
    path = next((name for name in PARTS if config.has(name)), "")
    what: list[object] = ["language"] if adapters else list(PARTS.values())
    if path:
        draft.set(key, what, path)
    else:
        draft.assume(key, what)
    if named_data(draft, ("dataset",)):
        draft.ask(NUMBER, "how many pictures a sample has", f"where samples are text alone: --set {NUMBER}=0")
