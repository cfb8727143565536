"""From ``training.base`` to how the frozen model under adapters is stored."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.defaults import Defaults
from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.job.framework import Framework
from memcheck.job.types import BITSANDBYTES
from memcheck.job.versions import TRANSFORMERS
from memcheck.models.types import Architecture, Moe
from memcheck.plan.types import BaseSpec, PrecisionSpec, TrainingSpec

FLOATS = ("bf16", "fp16", "fp32")
FOUR_BITS = ("nf4", "fp4")
DETAILS = {
    "int8": "no column of activations beyond llm_int8_threshold (6.0), where bitsandbytes computes in 16 bits",
    "gptq-4bit": "groups of 128 weights, and gptqmodel's kernel in PyTorch, which trains",
    "gptq-8bit": "groups of 128 weights, and gptqmodel's kernel in PyTorch, which trains",
    "awq-4bit": "groups of 128 weights, and gptqmodel's GEMM kernel",
    "fp8": "blocks of 128 x 128 weights, as transformers' FineGrainedFP8Config has them",
}
"""What the estimate of a base assumes, by the base's name."""
OPTION = "quantize"
"""The option of a framework that has words of its own for it."""


def resolve_base(
    stated: BaseSpec | None, method: str, framework: Framework, options: Mapping[str, object], defaults: Defaults
) -> str:
    """A word of ``memcheck.accounts.state``, or empty: the base is stored in the dtype of the parameters.

    Raises:
        ResolutionError: the framework has no such base, or the method trains every weight.
    """
    if stated is None or stated.held_in is None:
        return _by_method(method, framework, options)
    held = stated.held_in
    if method == "full":
        _refuse(f"a base held in {held} is frozen, and `method: full` trains it", "write `method: lora`")
    if held in FLOATS:
        if method == "qlora":
            _refuse(f"`method: qlora` quantises its base, which `base: {held}` leaves alone", "write `method: lora`")
        return ""
    if held not in framework.adapters.bases:
        known = ", ".join(framework.adapters.bases) or "none but the dtype of the parameters"
        _refuse(f"{framework.title} has no frozen base held in {held}", f"it has: {known}")
    if held not in FOUR_BITS:
        if stated.double is not None or stated.storage is not None:
            _refuse(f"`double` and `storage` are of 4-bit weights, and the base is held in {held}", "remove them")
        defaults.note("training.base.held_in", held, f"with {DETAILS[held]}")
        return held
    if OPTION in framework.options:
        if stated.double is not None or stated.storage is not None:
            _refuse(f"{framework.title} says by an option how its base is held", f"state it in `options.{OPTION}`")
        return _by_method("qlora", framework, options)
    double = defaults.take("training.base.double", stated.double, True)
    return held if double else f"{held}-single"


def _by_method(method: str, framework: Framework, options: Mapping[str, object]) -> str:
    """What ``qlora`` alone means: 4 bits, whose constants are quantised once more unless an option says otherwise."""
    if method != "qlora":
        return ""
    return framework.four_bits(options)


def with_base(precision: PrecisionSpec | None, stated: BaseSpec | None) -> PrecisionSpec | None:
    """The precision with the floats that the base is held in as the dtype of the parameters.

    Raises:
        ResolutionError: ``precision.params`` says something else.
    """
    held = stated.held_in if stated is not None else None
    if held not in FLOATS:
        return precision
    precision = precision or PrecisionSpec()
    if precision.params not in (None, held):
        _refuse(f"the base is held in {held}, and `precision.params` says {precision.params}", "state one of them")
    return precision._replace(params=held)


def _refuse(message: str, help: str) -> None:
    raise ResolutionError((JobProblem("base", "/training/base", message, help=help),))


def base_of(
    training: TrainingSpec,
    architecture: object,
    method: str,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> str:
    """What the base is held in (:func:`resolve_base`); the version that decides over its experts is listed."""
    held_in = resolve_base(training.base, method, framework, options, defaults)
    note_experts(training, architecture, held_in, framework, options, defaults)
    return held_in


def note_experts(
    training: TrainingSpec,
    architecture: object,
    held_in: str,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> None:
    """List the version that is assumed where bitsandbytes quantises the experts of older ones alone: since transformers
    5 a layer's experts are one parameter, which it passes over (integrations/bitsandbytes.py).
    """
    if held_in not in BITSANDBYTES or not framework.runs_transformers or options.get("quantize_experts"):
        return
    stacked = isinstance(architecture, Architecture) and any(
        isinstance(block.mlp, Moe) and block.mlp.stacked_adapters for block, _ in architecture.blocks
    )
    named = framework.versions_models
    if stacked and not (training.framework_version if named else options.get(TRANSFORMERS)):
        key = "training.framework_version" if named else f"training.options.{TRANSFORMERS}"
        why = "the experts stay in 16 bits, which transformers 4 quantises (4.57 is its last release)"
        defaults.note(key, "5.0 or newer", why)
