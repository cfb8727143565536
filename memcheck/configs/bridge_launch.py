"""Recipes of Megatron-Bridge by their names: in a launch of ``run_recipe.py``, and in a Python file that changes one.

Read at Megatron-Bridge 067f987df of August 2026 (``scripts/training/run_recipe.py``, ``recipe_runner.py``,
``setup_experiment.py``; ``src/megatron/bridge/recipes``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from memcheck.configs.config_file import ConfigFile, located
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table, shipped, shipped_keys
from memcheck.configs.megatron_bridge import OPTIONS, PROVIDED, SECTIONS, SHIPPED, arguments_of
from memcheck.configs.python_bridge import set_fields
from memcheck.configs.python_values import MadeObject, PythonValue, is_whole, plain
from memcheck.configs.torchtune_launch import override_value
from memcheck.configs.types import ConfigProblem, KeyRow, Note
from memcheck.errors import closest
from memcheck.plan.finding import Location
from memcheck.record import Record

RUNNERS = re.compile(
    r"(?:^|[\s/\"'])(?:training/)?(run_recipe\.py|train\.sh|setup_experiment\.py|launch_with_nemo_run\.py)\b"
)
"""Scripts that take ``--recipe``, or ``--model`` with ``--mode``."""
MODES = {"pretrain": "pretrain", "sft": "sft", "lora": "peft", "dora": "peft"}
"""``--mode``, and the word for it in the names of recipes."""
SHORT = {
    "-mb": "micro_batch_size",
    "-gb": "global_batch_size",
    "-sl": "seq_length",
    "-ms": "max_steps",
    "-tp": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size",
    "-ep": "expert_model_parallel_size",
    "-etp": "expert_tensor_parallel_size",
}
"""Options with one dash, and their long names."""
GPUS = (KeyRow("nodes", "hardware.nodes"), KeyRow("gpus-per-node", "hardware.gpus_per_node"))
WAY_OUT = (
    "write its ConfigContainer to a file, and check that: run_recipe.py --recipe {} --dry-run, or cfg.to_yaml(PATH)"
)


COLLISIONS = (
    *("deepseek_v3_pretrain_1024gpu_h100_bf16_config", "llama3_70b_peft_8gpu_h100_bf16_config"),
    *("llama3_70b_sft_32gpu_h100_bf16_config", "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config"),
)
"""Names that the runner finds among the benchmarks first (``recipe_metadata.py``); their short names are not there."""


class StatedField(Record):
    """One field of a container that a launch or a file sets over its recipe."""

    value: object
    at: Location


def launched(config: ConfigFile) -> str:
    """The option of a launch that names a recipe; empty for any other config."""
    if not config.launch or not any(RUNNERS.search(line[:2000]) for line in config.lines):
        return ""
    return "recipe" if config.has("recipe") else "model" if config.has("model") and config.has("mode") else ""


def join_recipe(draft: Draft) -> None:
    """Take the fields of the recipe that a launch names, and its own over them. Any other config is left as it is.

    Raises:
        ConfigError: memcheck does not know the recipe, or its adapters.
    """
    config = draft.config
    option = launched(config)
    if not option:
        return
    name, at = str(config.values[option]), config.at(option)
    scheme = str(config.values.get("peft_scheme") or config.values.get("mode") or "").lower()
    if name in COLLISIONS:
        message = f"the runner takes `{name}` from its benchmarks, which are not read"
        raise located(at, message, WAY_OUT.format(name))
    if option == "model":
        name = f"{name}_{MODES.get(scheme, scheme)}_config"
    if scheme not in (*MODES, "none", "") or scheme == "dora":
        path = "peft_scheme" if config.has("peft_scheme") else "mode"
        message = f"`{scheme[:40]}` has no memory model here: Megatron-Bridge's LoRA has one"
        raise located(config.at(path), message, "for an upper bound, estimate it as LoRA: --mode lora")
    names = key_table("megatron").names
    config.see(*names["bridge_options"])
    draft.rows(GPUS)
    said: dict[str, StatedField] = {}
    for key in [each for each in config.values if each in OPTIONS or "." in each]:
        field = OPTIONS.get(key, key)
        if field.partition(".")[0] in (*SECTIONS, *names["bridge_sections"]):
            said[field] = StatedField(override_value(str(config.values[key])), config.at(key))
            del config.values[key]
    if config.has("deterministic"):
        said["model.deterministic_mode"] = StatedField(True, config.at("deterministic"))
    adopt_recipe(draft, name, at, said)


def adopt_recipe(
    draft: Draft, name: str, at: Location, said: Mapping[str, StatedField], replaced: Iterable[str] = ()
) -> None:
    """Put a recipe's fields into the config as Megatron's arguments.

    ``said``: fields that are set over the recipe's own; ``replaced``: sections of which nothing of the recipe is left.

    Raises:
        ConfigError: memcheck does not know the recipe.
    """
    found = shipped_keys(SHIPPED, name)
    if found is None:
        near = closest(name, filter(None, shipped(SHIPPED)), cutoff=0.9)
        message = f"memcheck knows no recipe `{name[:80]}` of Megatron-Bridge's"
        message += "".join(f": the closest that it knows is `{each}`" for each in near)
        raise located(at, message, WAY_OUT.format(name[:80]))
    whole, fields = found
    gone = tuple(f"{section}." for section in replaced)
    if gone:
        fields = {key: each for key, each in fields.items() if key in PROVIDED or not f"{key}.".startswith(gone)}
    values = {**fields, **{key: each.value for key, each in said.items()}}
    for argument, (value, key) in arguments_of(values).items():
        draft.config.adopt(argument, value, said[key].at if key in said else at)
    shown = f"`{name}`" if name == whole else f"`{name}` ({whole})"
    message = f"{shown} is read as Megatron-Bridge ships it at 067f987df (August 2026)"
    draft.notes.append(Note(at, message, counted=True))


ROWS = {"micro-batch-size": "training.micro_batch_size", "global-batch-size": "training.global_batch_size"}
ROWS |= {"seq-length": "training.sequence_length", "hf-model-id": "model"}
"""Keys of the plan that settle an argument whose value the file computes."""
ANSWERS = {"training.micro_batch_size": "--micro-batch-size 1", "training.sequence_length": "--sequence-length 4096"}


def join_file(draft: Draft, recipe: MadeObject, words: Mapping[str, object]) -> None:
    """Take the fields of the recipe that a Python file trains, and over them those that the file and its launch set.

    ``words``: the arguments of the launch line, such as ``train.micro_batch_size=2``.

    Raises:
        ConfigError: memcheck does not know the recipe.
    """
    said: dict[str, StatedField] = {}
    replaced, options = [], []
    for field, value in set_fields(recipe):
        section, _, name = field.partition(".")
        if not name:
            replaced.append(section)
            if isinstance(value.of, MadeObject):
                continue
        if is_whole(value):
            said[field] = StatedField(plain(value), value.at)
            options += [f"`{value.option}`"] if value.option else []
        elif not name or arguments_of({field: "8"}):
            _ask(draft, field, value)
    for field, word in words.items():
        if field.partition(".")[0] in SECTIONS:
            said[field] = StatedField(override_value(str(word)), draft.config.at(field))
    name, *unread = [str(plain(each)) for each in recipe.arguments]
    adopt_recipe(draft, name, recipe.at, said, replaced)
    if options:
        listed = ", ".join(dict.fromkeys(options))[:200]
        message = f"the defaults of {listed} count: for another launch, give its line"
        draft.notes.append(Note(recipe.at, message))
    draft.notes += [Note(recipe.at, f"`{each[:60]}` of the recipe's function is not read") for each in unread]


def _ask(draft: Draft, field: str, value: PythonValue) -> None:
    """A question for a field that the file computes."""
    argument = next(iter(arguments_of({field: "8"})), "")
    key = "model" if field == "model" else ROWS.get(argument, "")
    message = f"`{field}` is not known: it hangs on {value.why or 'what only a run gives'}"
    help = ANSWERS.get(
        key, f"state it: --set {key}=VALUE" if key else "write its value into the file, or check its YAML"
    )
    help = "name the model: --model llama-3.1-8b" if key == "model" else help
    draft.problems.append(ConfigProblem(value.at, message, help, keys=(key,) if key else ()))
