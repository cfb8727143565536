"""From ``training.base`` and ``training.lora`` to adapters and the frozen model under them."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.autograd.weight_formats import BITSANDBYTES, FORMATS, FP4_SINGLE, INT8, NF4_SINGLE, FourBits, WeightFormat
from memcheck.job.framework import Framework
from memcheck.job.lookup import PLAN_DEFAULT, Defaults, JobProblem, ResolutionError
from memcheck.job.recipe import UPCAST
from memcheck.job.types import Lora, Recipe
from memcheck.job.versions import TRANSFORMERS, is_before
from memcheck.models.module_paths import Linear, linear_layers, matching
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.plan import types as plan_types
from memcheck.plan.types import BaseSpec, PrecisionSpec, TrainingSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


FLOATS = ("bf16", "fp16", "fp32")
WITHOUT_NESTED_CONSTANTS = {"nf4": NF4_SINGLE, "fp4": FP4_SINGLE}
"""4-bit formats whose constants are not quantised once more, by the word of ``training.base``."""
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
) -> WeightFormat | None:
    """Return the format in which the frozen base weights are stored; None: in the dtype of the parameters.

    ``stated``: the plan's ``training.base``; None: the ``method`` decides. Assumed values are noted in ``defaults``.

    Raises:
        ResolutionError: the framework has no base of that format, or the method trains every weight.
    """
    if stated is None or stated.held_in is None:
        return _by_method(method, framework, options)
    held_in = stated.held_in
    if method == "full":
        _refuse(f"a base held in {held_in} is frozen, and `method: full` trains it", "write `method: lora`")
    if held_in in FLOATS:
        if method == "qlora":
            _refuse(f"`method: qlora` quantises its base, which `base: {held_in}` leaves alone", "write `method: lora`")
        return None
    if held_in not in framework.adapters.base_formats:
        known = ", ".join(framework.adapters.base_formats) or "none but the dtype of the parameters"
        _refuse(f"{framework.title} has no frozen base held in {held_in}", f"it has: {known}")
    base_format = FORMATS[held_in]
    if not isinstance(base_format, FourBits):
        if stated.double is not None or stated.storage is not None:
            _refuse(f"`double` and `storage` are of 4-bit weights, and the base is held in {held_in}", "remove them")
        defaults.note("training.base.held_in", held_in, f"with {DETAILS[held_in]}")
        return base_format
    if OPTION in framework.options:
        if stated.double is not None or stated.storage is not None:
            _refuse(f"{framework.title} says by an option how its base is held", f"state it in `options.{OPTION}`")
        return _by_method("qlora", framework, options)
    quantises_constants = defaults.stated_or("training.base.double", stated.double, default=True)
    return base_format if quantises_constants else WITHOUT_NESTED_CONSTANTS[held_in]


def _by_method(method: str, framework: Framework, options: Mapping[str, object]) -> WeightFormat | None:
    """Return the base's format for a method alone: ``qlora`` means the framework's 4 bits, any other means None."""
    return framework.four_bits(options) if method == "qlora" else None


def with_base(precision: PrecisionSpec | None, stated: BaseSpec | None) -> PrecisionSpec | None:
    """Return the precision with the float dtype of the frozen base weights as the dtype of the parameters.

    Raises:
        ResolutionError: ``precision.params`` says something else.
    """
    held_in = stated.held_in if stated is not None else None
    if held_in not in FLOATS:
        return precision
    precision = precision or PrecisionSpec()
    if precision.params not in (None, held_in):
        _refuse(f"the base is held in {held_in}, and `precision.params` says {precision.params}", "state one of them")
    return precision._replace(params=held_in)


def _refuse(message: str, help: str) -> None:
    raise ResolutionError((JobProblem("base", "/training/base", message, help=help),))


def base_of(
    training: TrainingSpec,
    architecture: object,
    method: str,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> WeightFormat | None:
    """Return the format of the frozen base weights, as :func:`resolve_base`; note what is assumed of stacked
    experts.
    """
    base_format = resolve_base(training.base, method, framework, options, defaults)
    note_experts(training, architecture, base_format, framework, options, defaults)
    return base_format


READ_SINCE = (4, 37)
"""The first release of transformers under which somebody read a step over a base that bitsandbytes quantised."""
DIED_AT = {"int8": 0.67}
DIED_AT_4_BITS = 0.42
"""What steps under older releases needed at least beyond their estimate, over live bytes. LLaMA 7B over 8 bits and 13B
over NF4 ran out of the 14.56 GiB of a T4 at an estimate of 9.0 and 10.5, with adapters of rank 16 that their source
does not state (huggingface/blog 4bit-transformers-bitsandbytes.md)."""


def unread_share_of(
    training: TrainingSpec, base_format: WeightFormat | None, model: str, framework: Framework, defaults: Defaults
) -> float:
    """Return by which share of live bytes a step over a quantised base may need more, for what no plan states.

    ``base_format``: the format of the base weights. ``model``: its name, or empty. What is not known is noted in
    ``defaults``: old releases that nobody read, and which matrices unsloth's checkpoints leave in 16 bits.
    """
    if base_format is None or base_format not in BITSANDBYTES or not framework.runs_transformers:
        return 0.0
    key, trainer = "training.base", training.trainer
    version = trainer.version if trainer is not None else None
    share = framework.trainer_package(trainer).mixed_checkpoints(version)
    if trainer is not None and share:
        is_plain_copy = model.endswith("-bnb-4bit") and not model.endswith("-unsloth-bnb-4bit")
        if base_format == INT8 or not model or is_plain_copy:
            return 0.0
        why = f"{trainer.name}'s checkpoint may keep some matrices in 16 bits: up to {share:.0%} more"
        defaults.note(key, base_format.name, why)
        return share
    if not framework.version_is_transformers or not is_before(training.framework_version, READ_SINCE):
        return 0.0
    share = DIED_AT.get(base_format.name, DIED_AT_4_BITS)
    first = ".".join(map(str, READ_SINCE))
    why = f"no reading of a quantised base under transformers before {first}; jobs that died need {share:.0%} more"
    defaults.note(key, base_format.name, why)
    return share


def note_experts(
    training: TrainingSpec,
    architecture: object,
    base_format: WeightFormat | None,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> None:
    """Note in ``defaults`` which version of transformers is assumed, if it decides whether experts are quantised.

    ``base_format``: of the base weights. Since transformers 5 a layer's experts are one stacked parameter, which
    bitsandbytes skips, because it quantises modules (integrations/bitsandbytes.py).
    """
    if base_format not in BITSANDBYTES or not framework.runs_transformers or options.get("quantize_experts"):
        return
    stacked = isinstance(architecture, Architecture) and any(
        isinstance(block.mlp, Moe) and not block.mlp.adaptable for block, _ in architecture.blocks
    )
    named = framework.version_is_transformers
    if stacked and not (training.framework_version if named else options.get(TRANSFORMERS)):
        key = "training.framework_version" if named else f"training.options.{TRANSFORMERS}"
        why = "the experts stay in 16 bits, which transformers 4 quantises (4.57 is its last release)"
        defaults.note(key, "5.0 or newer", why)


PLACE = "/training/lora/target_modules"
MISTAKEN = ("glm4v_moe",)
"""Models whose modules peft mistakes for stacked experts."""


def with_reach(lora: Lora, architecture: Architecture | Rough, framework: Framework) -> Lora:
    """Return the adapters with the modules that ``target_modules``, a regular expression, matches in each part of a
    model.

    Parts are ``language``, ``vision`` and ``projector``.

    Raises:
        ResolutionError: the pattern cannot be read, matches nothing, or matches a module in some layers only.
    """
    pattern = str(lora.target_modules)
    if framework.adapters.are_own_code or framework.adapter_modules or not isinstance(architecture, Architecture):
        who = framework.name if isinstance(architecture, Architecture) else "a model of which only the size is known"
        _fail(f"patterns of modules have no meaning for {who}", "name the modules in a list")
    return lora._replace(reach=reach_of(pattern, architecture))


def reach_of(pattern: str, architecture: Architecture) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the names of the linear layers whose paths a regular expression matches, for each part of a model.

    ``pattern``: the plan's ``target_modules``. Parts are ``language``, ``vision`` and ``projector``.

    Raises:
        ResolutionError: the pattern cannot be read, matches nothing, or matches a module in some layers only.
    """
    experts = any(isinstance(block.mlp, Moe) and not block.mlp.adaptable for block, _ in architecture.blocks)
    if experts or architecture.model_type in MISTAKEN or architecture.encoder is not None:
        message = f"memcheck does not match patterns against the modules of {architecture.model_type}"
        _fail(message, "name them in a list")
    layers = tuple(linear_layers(architecture))
    try:
        matched = matching(pattern, layers)
    except ArchitectureError as error:
        _fail(error.message, "name the modules in a list")
    if not matched:
        paths = {layer.part: layer.path for layer in reversed(layers)}
        _fail(f"`{pattern}` matches the path of no linear layer", f"there are such as {', '.join(paths.values())}")
    parts = dict.fromkeys(layer.part for layer in matched)
    return tuple((part, _names(part, pattern, matched, layers)) for part in parts)


def _names(part: str, pattern: str, matched: list[Linear], layers: tuple[Linear, ...]) -> tuple[str, ...]:
    """Return the names, without their layers' numbers, of the linear layers ``matched`` in one part of a model.

    ``layers``: all linear layers. ``pattern``: the regular expression, for the message.

    Raises:
        ResolutionError: the part has a layer of such a name that the pattern does not match.
    """
    reached = {layer.path for layer in matched}
    names = tuple(dict.fromkeys(layer.name for layer in matched if layer.part == part))
    for layer in layers:
        matches = any(layer.name == name or layer.name.endswith("." + name) for name in names)
        if layer.part == part and matches and layer.path not in reached:
            _fail(
                f"`{pattern}` reaches `{layer.name}` in some layers and not in `{layer.path}`",
                "memcheck has a model of adapters in all layers of a kind, or none",
            )
    return names


def _fail(message: str, help: str) -> NoReturn:
    raise ResolutionError((JobProblem("lora", PLACE, message, help=help),))


PATTERN = frozenset("\\*+?[](){}|^$")
"""Characters that make a text of adapters' targets a pattern: a name, or the end of a path, has none of them."""


def resolve_lora(
    training: plan_types.TrainingSpec,
    framework: Framework,
    recipe: Recipe,
    architecture: Architecture | Rough,
    defaults: Defaults,
    *,
    upcast: bool = False,
) -> Lora:
    """Return the LoRA settings of a job: the plan's, or defaults of the framework, which are noted in ``defaults``.

    ``upcast``: the framework casts trained parameters to fp32, whatever dtype the plan states.
    """
    stated = training.lora or plan_types.LoraSpec()
    targets, plan_why = framework.adapters.targets, PLAN_DEFAULT
    dtype, why = "fp32", "default of PEFT: adapters are kept in fp32"
    lacks = "training.lora.dtype" in framework.lacks
    if framework.adapters.dtype == "params":
        dtype, why = recipe.params, f"default of {framework.name}"
        plan_why = plan_why if lacks else why
    if upcast and stated.dtype not in (None, "fp32"):
        lacks, dtype, why = True, "fp32", UPCAST
    lora = Lora(
        rank=defaults.stated_or("training.lora.rank", stated.rank, framework.adapters.rank, plan_why),
        target_modules=defaults.stated_or("training.lora.target_modules", stated.target_modules, targets, plan_why),
        dtype=defaults.stated_or("training.lora.dtype", None if lacks else stated.dtype, dtype, why),
        parts=stated.parts or (),
        dropout=float(defaults.stated_or("training.lora.dropout", stated.dropout, 0, plan_why)),
        dora=bool(stated.dora),
        modules_to_save=tuple(sorted(set(stated.modules_to_save or ()))),
        target_parameters=stated.target_parameters or (),
        expert_rank=stated.expert_rank or 0,
    )
    if isinstance(lora.target_modules, str) and PATTERN.intersection(lora.target_modules):
        return with_reach(lora, architecture, framework)
    return lora
