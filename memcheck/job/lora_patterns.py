"""Targets of adapters that are a regular expression: which linear layers of which part it reaches.

PEFT 0.21 ``tuners/tuners_utils.py`` (``check_target_module_exists``): a text that is not ``all-linear`` is a pattern of
the whole path (``re.fullmatch``); a list has names of modules, or the ends of their paths.
"""

from __future__ import annotations

from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.job.framework import Framework
from memcheck.job.types import Lora
from memcheck.models.errors import ArchitectureError
from memcheck.models.module_paths import Linear, linear_layers, matching
from memcheck.models.types import Architecture, Moe, Rough

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PLACE = "/training/lora/target_modules"
MISTAKEN = ("glm4v_moe",)
"""Models whose modules peft mistakes for stacked experts."""


def with_reach(lora: Lora, architecture: Architecture | Rough, framework: Framework) -> Lora:
    """The adapters with the names that their pattern reaches in each part.

    Raises:
        ResolutionError: the pattern cannot be read, reaches nothing, or some layers of a kind and not others.
    """
    pattern = str(lora.target_modules)
    if framework.adapters.own or framework.adapter_modules or not isinstance(architecture, Architecture):
        who = framework.name if isinstance(architecture, Architecture) else "a model of which only the size is known"
        _fail(f"patterns of modules have no meaning for {who}", "name the modules in a list")
    return lora._replace(reach=reach_of(pattern, architecture))


def reach_of(pattern: str, architecture: Architecture) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The names that a pattern reaches in each part of a model.

    Raises:
        ResolutionError: it cannot be read, reaches nothing, or some layers of a kind and not others.
    """
    experts = any(isinstance(b.mlp, Moe) and b.mlp.stacked_adapters for b, _ in architecture.blocks)
    if experts or architecture.model_type in MISTAKEN or architecture.encoder is not None:
        said = f"memcheck does not match patterns against the modules of {architecture.model_type}"
        _fail(said, "name them in a list")
    layers = tuple(linear_layers(architecture))
    try:
        found = matching(pattern, layers)
    except ArchitectureError as error:
        _fail(error.message, "name the modules in a list")
    if not found:
        paths = {layer.part: layer.path for layer in reversed(layers)}
        _fail(f"`{pattern}` matches the path of no linear layer", f"there are such as {', '.join(paths.values())}")
    return tuple((part, _names(part, pattern, found, layers)) for part in dict.fromkeys(x.part for x in found))


def _names(part: str, pattern: str, found: list[Linear], layers: tuple[Linear, ...]) -> tuple[str, ...]:
    """The names that stand for what was found in a part, and for nothing else there."""
    reached = {layer.path for layer in found}
    names = tuple(dict.fromkeys(layer.name for layer in found if layer.part == part))
    for layer in layers:
        stands = any(layer.name == name or layer.name.endswith("." + name) for name in names)
        if layer.part == part and stands and layer.path not in reached:
            _fail(
                f"`{pattern}` reaches `{layer.name}` in some layers and not in `{layer.path}`",
                "memcheck has a model of adapters in all layers of a kind, or none",
            )
    return names


def _fail(message: str, help: str) -> NoReturn:
    raise ResolutionError((JobProblem("lora", PLACE, message, help=help),))
