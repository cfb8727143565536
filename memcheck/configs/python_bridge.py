"""A Python file that trains a recipe of Megatron-Bridge: the recipe by its name, and the fields that the file sets.

Read at Megatron-Bridge 067f987df of August 2026 (``recipes/common.py``, ``recipes/utils/optimizer_utils.py``,
``training/pretrain.py``, ``training/finetune.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memcheck.configs.key_table import key_table
from memcheck.configs.megatron_bridge import OPTIONS, PRECISIONS, SECTIONS
from memcheck.configs.python_code import LibraryCall
from memcheck.configs.python_expressions import FollowedCode
from memcheck.configs.python_values import MadeObject, PythonValue, plain

RECIPE, SECTION = "Megatron-Bridge recipe", "Megatron-Bridge section"
"""The names of what a recipe's function returns, and of a section of it."""
PACKAGE = "megatron.bridge."
_OPTIMIZERS = {
    "distributed_fused_adam_with_cosine_annealing": "adam",
    "distributed_fused_adam_with_cosine_annealing_samples": "adam",
    "distributed_muon_with_cosine_annealing": "dist_muon",
}
"""Helpers that return an optimizer and its schedule, and the optimizer's word."""
_MODEL_METHODS = ("to_megatron_provider", "get_model_config")


def called(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """What a call of Megatron-Bridge gives; None for every other call."""
    if call.owner is not None:
        model = isinstance(call.held, MadeObject) and call.held.name == SECTION
        return call.owner if model and call.name in _MODEL_METHODS else None
    if not call.path.startswith(PACKAGE):
        return None
    if call.name in _OPTIMIZERS:
        said = {"optimizer": PythonValue(_OPTIMIZERS[call.name], call.at)}
        said["use_distributed_optimizer"] = PythonValue(True, call.at)
        return PythonValue([_section(run, call, said), _section(run, call, {})], call.at)
    if call.name == "from_hf_pretrained" and call.first is not None:
        return _section(run, call, {"hf_model_id": call.first})
    if call.name in PRECISIONS or call.name == "get_mixed_precision_config":
        named = PRECISIONS.get(call.name if call.name in PRECISIONS else str(plain(call.first)))
        said = {} if named is None else {name: PythonValue(value, call.at) for name, value in named.items()}
        return _section(run, call, said) if named is not None else None
    if ".recipes." not in call.path or not call.name.endswith("_config"):
        return None
    sections = {name: _section(run, call, {}) for name in SECTIONS}
    made = MadeObject(RECIPE, [PythonValue(call.name, call.at)], sections, call.at)
    for name, value in call.keywords.items():
        section, _, field = OPTIONS.get(name, "").partition(".")
        if section:
            sections[section].of.keywords[field] = value
        elif name not in key_table("megatron").names["bridge_arguments"]:
            made.arguments.append(PythonValue(name, call.at))
    made.depth = len(run.pending)
    run.things.append(made)
    return PythonValue(made, call.at)


def _section(run: FollowedCode, call: LibraryCall, said: Mapping[str, PythonValue]) -> PythonValue:
    made = MadeObject(SECTION, [], dict(said), call.at)
    made.depth = len(run.pending)
    return PythonValue(made, call.at)


def recipes_of(run: FollowedCode) -> list[MadeObject]:
    """The recipes that a file makes, each different one once."""
    found = {str(plain(each.arguments[0])): each for each in run.things if each.name == RECIPE}
    return list(found.values())


def set_fields(recipe: MadeObject) -> Iterator[tuple[str, PythonValue]]:
    """The fields of a recipe that the file sets, by their dotted names; a section itself where the file replaces it."""
    for section in SECTIONS:
        given = recipe.keywords[section]
        made = given.of
        if not (isinstance(made, MadeObject) and made.name == SECTION and given.at == recipe.at):
            yield section, given
        if not isinstance(made, MadeObject):
            continue
        if section == "peft" and made.name != SECTION:
            yield "peft._target_", PythonValue(made.name, made.at)
        for name, value in made.keywords.items():
            yield f"{section}.{name}", value
