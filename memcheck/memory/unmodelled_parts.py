"""Refusals for models with a tower or an encoder that memcheck has no model of: an error, never a guess."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.job.types import MS_SWIFT, TrainingJob
from memcheck.models.encoder import Encoder
from memcheck.models.types import Architecture

MISTAKEN = ("glm4v_moe",)
"""Model types whose `all-linear` peft turns into names that mean stacked experts in the language model. So it leaves
out the tower's own feed-forward networks and adapts its convolution: traced 3 % above the estimate.
"""

PREFERRED = ("dpo", "ipo")
"""Objectives that models with a tower are known to take."""
SEEING = ("trl-1.15", MS_SWIFT)
"""Trainer code of preference losses that passes pictures to the model."""


def refuse_parts(job: TrainingJob, architecture: Architecture) -> None:
    """Check that memcheck has a memory model of the plan for a model with a tower or an encoder.

    Raises:
        UnsupportedError: the plan asks for something without a memory model.
    """
    resident = job.framework.resident_towers
    if resident is not None:
        _refuse_of_stages(job, architecture, resident)
        return
    freezes_by_number = any(frozen.startswith("layers:") for frozen in job.freeze)
    if freezes_by_number and any(tower.part == "language" for tower in architecture.others):
        raise UnsupportedError(
            "memcheck has no model of layers frozen by number where some rest, which have numbers, too",
            "freeze `language`, or give the step pictures",
            "/training/freeze",
        )
    if architecture.vision is not None:
        _refuse_with_vision(job, architecture, crosses=bool(architecture.vision.text_layers_that_read_images))
    elif architecture.encoder is not None:
        _refuse_with_encoder(job, architecture.encoder)
        if architecture.encoder.own_word_rows:
            _refuse_of_two_tables(job)
    elif any(tower.part != "language" for tower in architecture.others):
        _refuse_with_idle_tower(job, architecture.model_type)


LANGUAGE_ALONE = ", or size the language model alone: `model: {part: language}`"
"""The end of a help: another way to size a plan with a tower."""


def _refuse_with_vision(job: TrainingJob, architecture: Architecture, *, crosses: bool) -> None:
    """Check that memcheck has a memory model of the plan for a model with a vision tower.

    ``crosses``: layers of the language model read pictures by cross attention, and not in their input.

    Raises:
        UnsupportedError: the plan asks for something without a memory model.
    """
    _refuse_divided(job, "a vision tower", LANGUAGE_ALONE, sees=not crosses, pads=not crosses)
    lora = job.lora
    adapts_tower = lora is not None and (not lora.parts or "vision" in lora.parts)
    adapts_all = lora is not None and lora.target_modules == "all-linear"
    if adapts_tower and adapts_all and architecture.model_type in MISTAKEN:
        raise UnsupportedError(
            f"memcheck has no model of `all-linear` in the tower of {architecture.model_type}",
            "adapt the language model alone: `lora: {parts: [language]}`, or name the modules",
            "/training/lora",
        )


def _refuse_with_idle_tower(job: TrainingJob, model_type: str) -> None:
    """Check that memcheck has a memory model of the plan for a tower whose pictures it does not know.

    Raises:
        UnsupportedError: the tower is trained on pictures, or the plan asks for something else without a memory model.
    """
    sees_pictures = job.images is not None and job.images.pictures_per_sample
    if sees_pictures and job.method == "full" and "vision" not in job.freeze:
        raise UnsupportedError(
            f"memcheck has no model of what a trained tower of {model_type} keeps of a picture",
            "freeze it: `freeze: [vision]`, or write `images: {per_sample: 0}` for samples of text alone",
            "/training/images",
        )
    _refuse_divided(job, "a tower", LANGUAGE_ALONE)


def _refuse_of_stages(job: TrainingJob, architecture: Architecture, resident: tuple[str, str]) -> None:
    """Check that a tower in a pipeline is resident on the first stage: frozen, without adapters and pictures.

    ``resident``: the framework's option, and its value, that put the tower on the first stage.

    Raises:
        UnsupportedError: the tower runs, is trained, or is divided among stages.
    """
    if architecture.vision is None and not architecture.others:
        return
    alone, where = "size the language model alone: `model: {part: language}`", f"under {job.framework.name}"
    option, value = resident
    if job.option(option) != value:
        message = f"memcheck has no model of a tower {where} but of one that {value} holds"
        raise UnsupportedError(message, f"write `{option}: {value}`, or {alone}", "/training/framework")
    if job.images is None or job.images.pictures_per_sample:
        message = f"memcheck has no model of a tower that runs {where}, only of one that does not"
        help = f"where samples are text alone, write `images: {{per_sample: 0}}`, or {alone}"
        raise UnsupportedError(message, help, "/training/images")
    if job.lora is not None and job.lora.parts != ("language",):
        message = f"memcheck has no model of adapters of a tower {where}"
        raise UnsupportedError(message, f"write `lora: {{parts: [language]}}`, or {alone}", "/training/lora")
    if job.lora is None and not {"vision", "projector"}.issubset(job.freeze):
        message = f"memcheck has no model of a trained tower {where}"
        raise UnsupportedError(message, f"write `freeze: [vision, projector]`, or {alone}", "/training/freeze")
    _refuse_steps(job, "a tower", f", or {alone}")


def _refuse_with_encoder(job: TrainingJob, encoder: Encoder) -> None:
    """Check that memcheck has a memory model of the plan for an encoder-decoder: its layout, and its own loss.

    Raises:
        UnsupportedError: the plan asks for something else.
    """
    _refuse_divided(job, "an encoder", "", pads=encoder.rotary_dim == 0)
    if job.loss.kind != "standard":
        raise UnsupportedError(
            f"an encoder-decoder takes its own loss of all logits; memcheck knows no {job.loss.kind} one",
            "leave it out",
            "/training/loss",
        )


def _refuse_of_two_tables(job: TrainingJob) -> None:
    """Check that the plan names no table of words if each stack has one."""
    named = next((word for word in ("embed", "head") if word in job.freeze), None)
    if named is not None:
        raise UnsupportedError(
            f"memcheck has no model of `{named}` frozen where encoder and decoder have a table each",
            "freeze `encoder`, or train adapters",
            "/training/freeze",
        )
    if job.lora is not None and job.lora.modules_to_save:
        raise UnsupportedError(
            "memcheck has no model of trained copies of two embedding tables",
            "remove modules_to_save",
            "/training/lora/modules_to_save",
        )


def _refuse_divided(job: TrainingJob, module: str, alternative: str, *, sees: bool = False, pads: bool = False) -> None:
    """Check that a model with a tower or an encoder runs next-token steps, and is sharded by FSDP or ZeRO alone.

    ``module``: the tower or encoder, for the message: "a tower". ``alternative``: text that ends the help and names
    another way to size the plan. ``sees``: image tokens are part of the language model's input, so that memcheck also
    knows preference steps. ``pads``: memcheck knows the memory of the mask of padded rows.

    Raises:
        UnsupportedError: the plan has tensor, context or pipeline parallelism, or steps that memcheck does not know.
    """
    layout = job.layout
    for degree, name in ((layout.tensor, "tensor"), (layout.context, "context"), (layout.pipeline, "pipeline")):
        if degree > 1:
            raise UnsupportedError(
                f"memcheck has no model of {name} parallelism over a model with {module}",
                f"shard with `zero_stage: 3`{alternative}",
                f"/parallelism/{name}",
            )
    _refuse_steps(job, module, alternative, sees=sees, pads=pads)


def _refuse_steps(job: TrainingJob, module: str, alternative: str, *, sees: bool = False, pads: bool = False) -> None:
    """Check that a model with a tower or an encoder runs next-token steps; parameters as in :func:`_refuse_divided`.

    ``pads``: rows may be padded. A tower that ``sees`` may also have preference steps over two rows, each with its
    pictures (TRL 1.16 trainer/dpo_trainer.py, DataCollatorForVisionPreference; ms-swift template/base.py,
    ``_rlhf_data_collator``).

    Raises:
        UnsupportedError: the plan has steps that memcheck does not know for such a model.
    """
    name, code = job.objective.name, job.objective.loss_code
    known = sees and name in PREFERRED and code in SEEING
    if sees and name in PREFERRED and not known:
        raise UnsupportedError(
            f"memcheck has no model of objective {name} of a model with {module} in the lines of {code}",
            "known are TRL's from 1.15 on (`trainer: {name: trl, version: '1.16'}`) and `trainer: ms-swift`"
            + alternative,
            "/training/objective",
        )
    second_model = bool(job.auxiliary_models) and not known
    knows_rows = job.sequences in ("packed", "padded" if pads else "")
    unknown = {
        "/training/objective": f"objective {name}" if name != "sft" and not known else "",
        "/training/head": f"a {job.head.kind} head" if job.head.kind != "lm" else "",
        "/training/reference": "a second model next to the one that is trained" if second_model else "",
        "/training/evaluation": "the evaluation" if job.evaluation is not None else "",
        "/training/sequences": "" if knows_rows else f"{job.sequences} rows",
    }
    for pointer, what in unknown.items():
        if what:
            message = f"memcheck has no model of {what} of a model with {module}"
            raise UnsupportedError(message, f"leave it out{alternative}", pointer)
    if job.checkpointing.every_n_layers > 1:
        raise UnsupportedError(
            f"memcheck has no model of recomputing every n-th layer of a model with {module}",
            "recompute every layer",
            "/training/activation_checkpointing/every_n_layers",
        )
