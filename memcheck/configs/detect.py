"""A Hugging Face config.json: what tells it, and the keys of it that a training config overrides.

Which framework a config belongs to, by the keys that it has: never by its file's name alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memcheck.configs.config_file import ConfigFile, all_keys, any_key, located
from memcheck.configs.draft import Draft
from memcheck.configs.formats import FORMATS
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import starts_processes
from memcheck.configs.python_code import code_of
from memcheck.configs.python_job import followed, trains
from memcheck.configs.python_library import DATACLASS_PARSERS
from memcheck.configs.python_source import script_near
from memcheck.configs.refusals import (
    after_formats,
    asked_in_words,
    before_formats,
    before_syntax,
    elsewhere,
    learning_script,
)
from memcheck.configs.syntax import ARGUMENTS, PYTHON, load_config, syntax_of
from memcheck.configs.trainer_script import LENGTHS, objectives_named, otherwise_named, script_of
from memcheck.configs.types import COMMAND, ConfigError
from memcheck.plan.finding import Location, Span

TYPE = "model_type"
SIZES = ("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers")
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections of a model with a tower that hold the sizes of its language model."""


def describes_model(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a model's config: it has a type and sizes. ms-swift's arguments have a type alone."""
    return isinstance(config.get(TYPE), str) and any(name in config for name in (*SIZES, *PARTS))


SIZELESS = frozenset(
    (
        "trust_remote_code",
        "use_cache",
        "architectures",
        "attn_implementation",
        "output_hidden_states",
        "output_attentions",
        "output_router_logits",
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "rms_norm_eps",
        "layer_norm_eps",
        "max_position_embeddings",
        "initializer_range",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "router_aux_loss_coef",
        "norm_topk_prob",
    )
)
"""Keys of a model's configuration that set no size of a decoder with rotary positions."""


KEPT = ("output_hidden_states", "output_attentions", "output_router_logits")
"""Switches by which every layer returns more than its output, and the model keeps all of it until its end."""


def changed(draft: Draft, prefix: str, sizeless: frozenset[str] = SIZELESS) -> dict[str, object]:
    """The keys below ``prefix``, which ends with a dot, but for those without a size; nested as the file has them."""
    found: dict[str, object] = {}
    for key, value in draft.config.values.items():
        if not sized(key, prefix, sizeless):
            continue
        *sections, name = key.removeprefix(prefix).split(".")
        table = found
        for each in sections:
            below = table.setdefault(each, {})
            table = below if isinstance(below, dict) else {}
        table[name] = value
    return found


def sized(key: str, prefix: str, sizeless: frozenset[str] = SIZELESS) -> bool:
    """Whether a key below ``prefix`` sets a size."""
    return key.startswith(prefix) and key.removeprefix(prefix).partition(".")[0] not in sizeless


def override(draft: Draft, section: str) -> None:
    """State ``model.overrides`` where a section of this name changes a size."""
    prefix = f"{section}."
    found = changed(draft, prefix)
    if found:
        draft.set("model.overrides", found, next(key for key in draft.config.values if sized(key, prefix)))
    for path in (f"{prefix}{name}" for name in KEPT):
        if draft.config.values.get(path) is True:
            draft.note(path, "the second output of every layer is not in the estimate")
    draft.config.see(section, *(key for key in draft.config.values if key.startswith(prefix)))


MODEL_CONFIG = "a Hugging Face config.json"
MODELLESS = "a file of TrainingArguments without a model"
UNREAD = (
    (any_key("memcheck"), "a plan already", "check it with `memcheck check FILE`"),
    (
        any_key("pipe-parallel-size", "pipe_parallel_size"),
        "a GPT-NeoX config",
        "write the plan with training.framework: megatron, whose layers come closest",
    ),
    (any_key("log_history"), "the state of a Trainer that ran", "name the config that it was started with"),
    (
        any_key("sharding_parallel_degree", "pipeline_parallel_degree", "enable_auto_parallel"),
        "a PaddleNLP launch",
        "its engine has no memory model here: write the plan with the framework that comes closest",
    ),
    (any_key("infer_backend"), "a chat, a server or an evaluation, which trains nothing", ""),
    (
        any_key("tokens.", "optimizer.zero_stage"),
        "a nanotron config without a model",
        "its dimensions are read from `model.model_config`",
    ),
    (
        any_key("per_device_train_batch_size"),
        MODELLESS,
        "state it: --from transformers --model llama-3.1-8b",
    ),
    (
        all_keys((TYPE,), (*SIZES, *(f"{part}." for part in PARTS))),
        MODEL_CONFIG,
        "`memcheck estimate FILE --gpu NAME --gpus N` takes the usual job; a plan says yours: `model: {config: FILE}`",
    ),
    (
        any_key("fsdp_transformer_layer_cls_to_wrap", "transformer_layer_cls_to_wrap", "backward_prefetch"),
        "the FSDP section of TrainingArguments, half of a job's layout",
        "name the config that points at it",
    ),
)
"""Kinds of files that memcheck knows and does not read as a job: the evidence, the name, what to do instead."""

NOTHING: Mapping[str, object] = {}
BEFORE = 4
"""How many of them stand before every format: a part of their keys is DeepSpeed's."""
_NAMED = re.compile(
    r"(?:^|[\s;&])(?:swift|megatron|llamafactory-cli|axolotl|trl|tune|torchrun|deepspeed|python3?|accelerate)\s"
    r"(?:.*?\s)??[\"']?(?P<file>[\w./${}~-]+\.(?:ya?ml|json|toml))[\"']?(?=\s|$)"
)
"""A launcher's line and the first file of arguments on it, which is not its own ``--config_file``."""
_ENVIRONMENT = re.compile(
    r"/activate\b|conda|\.(?:bashrc|bash_profile|profile|zshrc|env)\b|/etc/profile|modules?/init|activate\w*\.sh"
    r"|(?:^|[/_\s.-])(?:env|venv|environment|setup|modules?|init|utils|set_env|setup_env)\w*\.(?:sh|bash)\b",
    re.IGNORECASE,
)
"""Scripts that are sourced for what they put on the path, and say nothing of a training."""
HELP = f"memcheck reads {', '.join(each.title for each in FORMATS.values() if not each.stated)}; --from says which"


def detect(path: str, text: str, *, named: bool = False, beside: Mapping[str, object] = NOTHING) -> str:
    """The name of the format.

    ``named``: the user states the model in addition to the config. ``beside``: the GPU and the counts that the user
    states, which the command in a refusal repeats.

    Raises:
        ConfigError: the config of a framework without a reader, an unknown file, or text in no config's syntax.
    """
    before_syntax(path, text, beside)
    syntax = syntax_of(path, text)
    if syntax == PYTHON:
        return PYTHON
    config = load_config(path, text, syntax)
    before_formats(config, syntax, beside)
    name = recognised(config, syntax)
    if name in ("trl", "transformers") and syntax == ARGUMENTS and _decides_itself(config):
        return PYTHON
    if name:
        return name
    after_formats(path, text, config, syntax, beside)
    for recognise, kind, help in UNREAD:
        key = recognise(config) if kind != MODEL_CONFIG or syntax != ARGUMENTS else ""
        if key and kind == MODELLESS and (named or (syntax == ARGUMENTS and otherwise_named(config))):
            return "transformers"
        if key:
            raise located(config.at(key), f"this is {kind}", help or HELP)
    name, at = script_of(config) if syntax == ARGUMENTS else ("", config.at(""))
    near, code = script_near(config) if name else ("", "")
    follows = _trains(near, code)
    for number, line in enumerate(config.lines if syntax == ARGUMENTS else (), 1):
        sourced = re.match(r"\s*(?:source|\.)\s+(\S+)", line)
        if sourced is not None and not _ENVIRONMENT.search(line):
            at = Location(path, Span(number, sourced.start(1) + 1, number, sourced.end(1) + 1))
            message = f"the script's arguments are in `{sourced[1]}`, which it sources"
            raise located(at, message, "name that script, with --define for what this one sets")
        named_there = None if follows else _named(line)
        if named_there is not None:
            at = Location(path, Span(number, named_there.start("file") + 1, number, named_there.end("file") + 1))
            message = f"the launch's arguments are in `{named_there['file']}`, which it names"
            raise elsewhere(at, message, named_there["file"], config, beside)
    if follows:
        return PYTHON
    batch = any(line.startswith("#SBATCH") for line in config.lines)
    if name and (starts_processes(config) or path == COMMAND or (batch and at != config.at(""))):
        name, at = learning_script(config) or (name, at)
        inside = "what it starts" if at == config.at("") else f"`{name}`"
        where = asked_in_words(config)
        raise located(at, f"the command names {_unstated(config)} {inside}{where}", _answers(config))
    raise ConfigError(f"{path}: this is no config that memcheck knows", HELP)


def _decides_itself(config: ConfigFile) -> bool:
    """Whether a launch runs a script on the disk that hands no dataclass of a trainer to its command line's parser.

    What such a script does with options of those names is its own: its job is found by following it.
    """
    near, code = script_near(config)
    return re.search(rf"\b(?:{'|'.join(DATACLASS_PARSERS)})\b", code) is None and _trains(near, code)


def _trains(path: str, code: str) -> bool:
    """Whether a Python file makes a trainer; no text is none."""
    return bool(code) and trains(followed(code_of(path, code)))


def _unstated(config: ConfigFile) -> str:
    """What a launch leaves to its script, where it states no argument of a training."""
    return "no batch: it is inside" if _names_model(config) else "no model and no batch: they are inside"


def _answers(config: ConfigFile) -> str:
    """All options that such a launch needs: the reader of its script, and what its arguments do not state."""
    named = [
        each
        for each in objectives_named(config, key_table("trl").names["scripts"])
        if each not in key_table("trl").names["rollouts"]
    ]
    options = [
        f"--from {'trl' if named else 'transformers'}",
        "" if _names_model(config) else "--model llama-3.1-8b",
        "--micro-batch-size 1",
        "" if any(config.has(name) for name in LENGTHS) else "--sequence-length 4096",
        f"--set training.objective={named[0] if named else 'sft'} --set training.method=full",
        "--set training.precision.recipe=bf16-mixed --set training.precision.params=bf16",
    ]
    return f"state what it does: {' '.join(filter(None, options))}"


def _names_model(config: ConfigFile) -> bool:
    return config.has("model_name_or_path") or bool(otherwise_named(config))


def _named(line: str) -> re.Match[str] | None:
    """The file of arguments that a launch hands on; engines' and launchers' own files are parts of others' jobs."""
    code = re.sub(r"(?:^|\s)#.*", lambda found: " " * len(found[0]), line[:2000])
    code = re.sub(r"--(?:config_file|deepspeed|fsdp_config)[=\s]+\S+", lambda found: " " * len(found[0]), code)
    return _NAMED.search(code)


def recognised(config: ConfigFile, syntax: str) -> str:
    """The name of the first format that finds its evidence; empty when none does."""
    if any(recognise(config) for recognise, _, _ in UNREAD[:BEFORE]):
        return ""
    return next(
        (
            name
            for name, each in FORMATS.items()
            if syntax in each.syntaxes and not each.stated and each.recognise(config)
        ),
        "",
    )
