"""Reads the command that starts a vLLM server: ``vllm serve``, its module, an image, or a call of ``LLM``.

Source: vLLM 0.20.2 and 0.33.0 ``engine/arg_utils.py`` (EngineArgs), ``utils/argparse_utils.py`` (names, counts).
"""

from __future__ import annotations

import json
import re

from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile, located
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.other_jobs import split
from memcheck.configs.serve_lines import servers_in, serving_alone, version_in
from memcheck.configs.shell_values import resolved
from memcheck.configs.trainer_parts import TRUE, architecture_named, text
from memcheck.configs.types import ConfigProblem, ReadConfig
from memcheck.models.types import Architecture, Moe
from memcheck.plan.finding import Location, Span

KEYS = key_table("vllm")
ENGINE, VERSION, WEIGHTS, PER_NODE = (
    "inference.engine",
    "inference.version",
    "inference.weights",
    "hardware.gpus_per_node",
)
LISTS, SWITCHES = KEYS.as_set("lists"), KEYS.as_set("switches")
SHORT: dict[str, str] = dict(KEYS.words["short"])
_COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgGtT])\Z")
_POWERS = "kmgt"
MODEL = "model"
POOL, SHARE = "inference.kv_cache_bytes", "inference.gpu_memory_utilization"


def recognise(config: ConfigFile) -> str:
    """A word of a config that starts a server; empty without one."""
    return "vllm serve" if config.launch and servers_in(config.lines) else ""


def read_vllm(config: ConfigFile, world: int | None) -> ReadConfig:
    """The server in the plan's words. ``world``: GPUs, where their number is known.

    Raises:
        ConfigError: `vllm serve` stands only in commands that the image does not start with.
    """
    found = servers_in(config.lines)
    if not found:
        raise located(config.at(""), "no command that the image starts with is `vllm serve`", "check the server's line")
    _renamed(config)
    draft = Draft(config, "vllm", KEYS.title)
    command, start, end = found[0]
    at = command.at(config.path, start, min(end, start + len("vllm serve")))
    if len(found) > 1:
        numbers = " and ".join(str(each.lines[0][1]) for each, _, _ in found[:2])
        message = f"the file starts {len(found)} servers, which differ; the first two are at lines {numbers}"
        draft.problems.append(ConfigProblem(at, message, "check each in a file of its own"))
    _model(draft, command.text[start:end], at)
    draft.derive(ENGINE, "vllm", f"{at.path}:{at.span.line} starts vLLM")
    draft.settings[ENGINE] = draft.settings[ENGINE]._replace(location=at)
    _version(draft)
    draft.rows(KEYS.rows["plain"])
    _counts(draft)
    _switches(draft)
    _weights(draft)
    _gpus(draft, world)
    _refused(draft)
    draft.unmodelled(KEYS.unmodelled)
    draft.irrelevant(KEYS.irrelevant)
    return draft.finish()


def _renamed(config: ConfigFile) -> None:
    """Arguments with dashes, and ``--json.key value`` under the name of its argument."""
    for key in list(config.values):
        head, dot, rest = key.partition(".")
        plain = head.replace("_", "-") + dot + rest
        if plain != key:
            config.rename(key, plain)


def _model(draft: Draft, command: str, at: Location) -> None:
    """The model: the first word that is no argument's value, or ``--model``."""
    config = draft.config
    words = [resolved(word, config.variables) for word in split(command.replace("\\", " "))]
    number = 2 if words[:1] in (["vllm"], ["-m"]) else 1
    positional = ""
    while number < len(words) and not (config.has(MODEL) and config.values[MODEL] is not True):
        word = words[number]
        name, equals, _ = word.partition("=")
        name = SHORT.get(name, name).lstrip("-").replace("_", "-")
        if not word.startswith("-"):
            positional = word
            break
        many = name in LISTS
        number += 1
        if equals or name in SWITCHES or name.startswith("no-"):
            continue
        number += 1
        while many and number < len(words) and not words[number].startswith("-"):
            number += 1
    if positional and not re.match(r"\$[@*]|\$\{\w+\[[@*]\]", positional):
        config.adopt(MODEL, positional, at)
        for name in SWITCHES:
            if config.values.get(name) == positional:
                config.values[name] = True
    config.see("model-tag")
    if not config.has(MODEL) and config.has("model-tag"):
        config.rename("model-tag", MODEL)
    parts.model(draft, MODEL)


def _version(draft: Draft) -> None:
    """The release: what the user states, or the tag of an image."""
    config = draft.config
    tag = next((version_in(line) for line in config.lines if version_in(line)), "")
    if config.version:
        draft.derive(VERSION, config.version, "--framework-version")
    elif tag:
        number = next(n for n, line in enumerate(config.lines, 1) if version_in(line))
        column = config.lines[number - 1].index(tag)
        place = Location(config.path, Span(number, column + 1, number, column + 1 + len(tag)))
        draft.derive(VERSION, tag, f"{config.path}:{number} tag of the image")
        draft.settings[VERSION] = draft.settings[VERSION]._replace(location=place)


def _counts(draft: Draft) -> None:
    """Whole numbers, also as ``32k`` (32,000) and ``32K`` (32,768)."""
    for row in KEYS.rows["counts"]:
        path = next((name for name in (row.path, *row.aliases) if draft.config.has(name)), row.path)
        found = _COUNT.match(str(draft.config.values.get(path, "")))
        if found is None:
            draft.rows((row,))
            continue
        power = _POWERS.index(found[2].lower()) + 1
        scale = 1000**power if found[2].islower() else 1024**power
        draft.set(row.key, int(float(found[1]) * scale), path)
    if POOL in draft.settings:
        draft.settings.pop(SHARE, None)  # the engine takes no share where the pool is stated


def _switches(draft: Draft) -> None:
    """Switches with their ``--no-`` forms, and whether requests may have pictures."""
    config = draft.config
    for row in KEYS.rows["switches"]:
        if row.path in config.values and config.values[row.path] is not False:
            draft.rows((row,))
        if f"no-{row.path}" in config.values:
            draft.set(row.key, value=False, path=f"no-{row.path}")
    for key in [key for key in config.values if key.startswith("no-") and key[3:] in SWITCHES]:
        config.see(key)
    limit = config.values.get("limit-mm-per-prompt")
    nested = {
        key.partition(".")[2]: value for key, value in config.values.items() if key.startswith("limit-mm-per-prompt.")
    }
    config.see(*(f"limit-mm-per-prompt.{key}" for key in nested))
    if config.values.get("language-model-only") in TRUE:
        draft.set("inference.images", value=False, path="language-model-only")
    elif _none_at_all(limit, nested):
        draft.set("inference.images", value=False, path="limit-mm-per-prompt")
    config.see("language-model-only")


def _none_at_all(limit: object, nested: dict[str, object]) -> bool:
    """Whether neither images nor videos are allowed: ``{"image": 0, "video": 0}`` or ``image=0,video=0``."""
    said = dict(nested)
    if isinstance(limit, str) and len(limit) < 1000:
        try:
            loaded = json.loads(limit)
        except (ValueError, RecursionError):
            loaded = dict(each.partition("=")[::2] for each in limit.split(","))
        said.update(loaded if isinstance(loaded, dict) else {})
    return all(str(said.get(name, "")) == "0" for name in ("image", "video"))


def _weights(draft: Draft) -> None:
    """The dtype in which weights are resident: the method of quantization, else what the checkpoint is, else ``dtype``.

    A name tells what a checkpoint is: ``Qwen/Qwen3-32B-FP8``. So do models whose own checkpoint is quantized.
    """
    config = draft.config
    method, dtype = text(draft, "quantization").lower(), text(draft, "dtype").lower()
    methods = KEYS.words["quantizations"]
    name = str(draft.value("model.name") or "")
    by_name = _stored(name)
    if config.has("quantization") and not draft.unset("quantization", method, WEIGHTS):
        if methods.get(method):
            draft.set(WEIGHTS, methods[method], "quantization")
            return
        if method not in methods and by_name and method in ("compressed-tensors", "compressed_tensors"):
            draft.set(WEIGHTS, by_name, "quantization")
            return
        if method not in methods:
            message = f"`quantization: {method}`: memcheck does not know the size of its weights"
            draft.refuse("quantization", message, f"state it: --set {WEIGHTS}=fp8", (WEIGHTS,))
            return
    if by_name:
        draft.derive(WEIGHTS, by_name, f"the name of the checkpoint: {name}")
        draft.settings[WEIGHTS] = draft.settings[WEIGHTS]._replace(assumed=True)
        return
    model = architecture_named(draft)
    own = KEYS.words["checkpoints"].get(model.model_type, "") if model is not None else ""
    if own and not re.search(r"bf16|dequantized", name.lower()):
        draft.assume(WEIGHTS, own, "the model's own checkpoint is quantized")
    elif dtype:
        words = KEYS.words["dtypes"]
        if draft.unset("dtype", dtype, WEIGHTS):
            return
        if dtype not in words:
            draft.refuse(
                "dtype", f"`dtype: {dtype}` is no dtype of vLLM", "auto, bfloat16, float16 or float32", (WEIGHTS,)
            )
        elif words[dtype]:
            draft.set(WEIGHTS, words[dtype], "dtype")


def _stored(name: str) -> str:
    """What words in the name of a checkpoint say: ``AWQ`` is int4, ``GPTQ-Int8`` is int8; empty for none."""
    words = re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower())
    found = [KEYS.words["stored"][word] for word in words if word in KEYS.words["stored"]]
    if "bnb" in words or "gguf" in words:
        return ""
    return found[-1] if found else ""


def _gpus(draft: Draft, world: int | None) -> None:
    """How many GPUs: tensor times pipeline ranks, where nothing says how many. Replicas are servers of their own."""
    degrees = [draft.value(f"inference.{name}") for name in ("tensor", "pipeline")]
    ranks = 1
    for degree in degrees:
        ranks *= degree if isinstance(degree, int) and degree > 0 else 1
    replicas = draft.whole("data-parallel-size") or 1
    model = architecture_named(draft)
    if replicas > 1 and isinstance(model, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in model.blocks):
        message = "`data-parallel-size` of a mixture of experts divides the experts over replicas: no memory model here"
        draft.refuse("data-parallel-size", message, "check one server without it")
    if PER_NODE not in draft.settings:
        draft.assume(PER_NODE, world or ranks * replicas, "tensor x pipeline ranks of each replica")


def _refused(draft: Draft) -> None:
    """Arguments of jobs without a memory model, unless they ask for nothing."""
    config, harmless = draft.config, KEYS.words["harmless"]
    for name, what in KEYS.refused.items():
        paths = [key for key in config.values if key == name or key.startswith(f"{name}.")]
        for path in paths:
            written = str(config.values[path])
            if config.values[path] in (None, False) or written.lower() in ("false", *harmless.get(name, "").split()):
                config.see(path)
            elif name == "config":
                help = "write the arguments on the line; `memcheck check` on that file shows how"
                draft.refuse(path, f"`config: {written}`: the server's arguments are in this file", help)
            else:
                draft.refuse(path, f"`{path}`: {what}, which memcheck does not model", "check the server without it")


READER = Reader(recognise=recognise, read=read_vllm, lists=LISTS, short=SHORT, trains=serving_alone)
