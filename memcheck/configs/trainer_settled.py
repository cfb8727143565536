"""What a config means as a whole, where its parts would say what its framework's memory model does not have."""

from __future__ import annotations

from memcheck.configs.draft import Draft
from memcheck.configs.pictures import sees, stated
from memcheck.configs.trainer_adapters import HELD
from memcheck.configs.trainer_parts import architecture_named
from memcheck.configs.types import Note, ReadSetting
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.rows import MASKED
from memcheck.models.padding import maskable, unpaddable

ROWS, TRAINER, PLACE = "training.sequences", "training.trainer.name", "training.initialization.place"
EVALUATION = "training.evaluation."
CUTS = ("parallelism.tensor", "parallelism.context", "parallelism.pipeline")


def settle(draft: Draft, multiple: int = 1) -> None:
    """Padding, the pass between steps, the trainer and the loading, as far as they can be estimated; else that is said.

    ``multiple``: tokens. The collator pads each row to a multiple of this, also a row that is alone in its batch.
    """
    profile = FRAMEWORKS[str(draft.value("training.framework"))]
    stated(draft)
    if draft.value(TRAINER) not in profile.trainers:
        draft.settings.pop(TRAINER, None)
    if draft.value(ROWS) == "padded":
        why = _as_full(draft, multiple)
        if why:
            draft.settings[ROWS] = ReadSetting("unpacked", why, assumed=True)
        elif _alone(draft):
            why = f"a row is padded to a multiple of {multiple} tokens, with a mask"
            draft.settings[ROWS] = ReadSetting("unpacked-masked", why, assumed=True)
    cut = any(isinstance(degree := draft.value(key), int) and degree > 1 for key in CUTS)
    if _passes_less(draft) and (not profile.runs_transformers or cut or sees(draft) is not None):
        for key in [key for key in draft.settings if key.startswith(EVALUATION)]:
            del draft.settings[key]  # it holds what a step's forward does, and neither a graph nor gradients
    elif not profile.runs_transformers or cut:
        _drop_evaluation(draft, "the evaluation pass is not in the estimate of a job that is split like this")
    _packed(draft, profile.adapters.bases)
    if draft.value("training.method") == "qlora" and draft.value(PLACE) not in (None, "device"):
        setting = draft.settings.pop(PLACE)
        _note(draft, setting, "a quantized model that one rank loads is estimated as if every process quantized it")


PACKED = {
    "-gptq-int8": "gptq-8bit",
    "-gptq-8bit": "gptq-8bit",
    "-gptq": "gptq-4bit",
    "-awq": "awq-4bit",
    "-bnb-4bit": "nf4",
    "-bnb-8bit": "int8",
    **dict.fromkeys(("-nvfp4", "-mxfp4", "-fp8", "-w4a16", "-w8a8", "-w8a16"), "compressed"),
    **dict.fromkeys(("-int4", "-int8", "-hqq", "-aqlm", "-eetq", "-quantized"), "compressed"),
}
"""What a repository's files hold, by what its name ends in or goes on with."""


def _packed(draft: Draft, bases: tuple[str, ...]) -> None:
    """Adapters over a repository of packed weights: the base is held in them, where that is what can be estimated."""
    name, stage = str(draft.value("model.name")).lower(), draft.value("parallelism.zero_stage")
    held = next((word for part, word in PACKED.items() if part in name), "")
    sharded = isinstance(stage, int) and stage > 1
    if draft.value("training.method") != "lora" or not held or HELD in draft.settings:
        return
    if held in bases and not sharded:
        draft.derive(HELD, held, "the files of that repository hold packed weights")
    else:
        message = f"the files hold packed weights ({held}), which are estimated in 16 bits here: an upper bound"
        _note(draft, draft.settings["model.name"], message)


def masked(draft: Draft, path: str, rows: str, why: str) -> None:
    """Packed rows whose documents a mask keeps apart, where the kernel cannot. ``rows``: how they lie then."""
    if draft.value("training.attention") not in MASKED:
        return
    if sees(draft) is None and _masks(draft):
        draft.derive(ROWS, rows, why)
    else:
        draft.note(path, "the mask that it hands to layers without FlashAttention is not in the estimate")


def _masks(draft: Draft) -> bool:
    """Whether masks of this model's rows have a memory model."""
    known = architecture_named(draft)
    pads = FRAMEWORKS[str(draft.value("training.framework"))].runs_transformers
    whole = draft.value("parallelism.context") in (None, 1)
    return pads and whole and (known is None or maskable(known))


def _alone(draft: Draft) -> bool:
    """Whether a micro-batch is one row."""
    return draft.value("training.micro_batch_size") == 1 and "training.objective.name" not in draft.settings


def _as_full(draft: Draft, multiple: int) -> str:
    """Why rows of varying length are estimated as full ones; empty where padding is estimated."""
    if _alone(draft) and multiple == 1:
        return "one row at a time: nothing is padded, and sequence_length is the longest"
    single = _alone(draft) and sees(draft) is not None
    if not (draft.value("training.attention") in MASKED or _unpads(draft)) or single or not _masks(draft):
        return "padded rows are estimated as full ones: what takes the padding out and in again is not in the estimate"
    return ""


def _unpads(draft: Draft) -> bool:
    """Whether FlashAttention takes padding out of several rows of a model where that has a memory model."""
    known = architecture_named(draft)
    several = not _alone(draft)
    return draft.value("training.attention") == "flash" and several and known is not None and unpaddable(known)


def _passes_less(draft: Draft) -> bool:
    """Whether the pass between steps takes no more rows than a step, and keeps no logits."""
    rows, most = draft.value(f"{EVALUATION}micro_batch_size"), draft.value("training.micro_batch_size")
    kept = draft.value(f"{EVALUATION}logits") == "kept"
    return isinstance(rows, int) and isinstance(most, int) and rows <= most and not kept


def _drop_evaluation(draft: Draft, message: str) -> None:
    found = [key for key in draft.settings if key.startswith(EVALUATION)]
    settings = [draft.settings.pop(key) for key in found]
    if settings:
        _note(draft, settings[0], message)


def _note(draft: Draft, setting: ReadSetting, message: str) -> None:
    at = setting.location or draft.config.at("")
    draft.notes.append(Note(at, message))
