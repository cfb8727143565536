"""A launch of torchtune: the recipe's file, the keys that it changes, and how keys refer to others.

The parts of a torchtune recipe: models, losses, optimizers and recompute, by their components.
"""

from __future__ import annotations

import os
import re

from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table, shipped_keys
from memcheck.configs.launch_lines import commands_of
from memcheck.configs.shell_documents import Positional
from memcheck.configs.trainer_parts import RECOMPUTE, on, text
from memcheck.configs.trainer_split import load_named
from memcheck.configs.types import ConfigError, ConfigProblem, KeyRow, Note
from memcheck.edge.libyaml import yaml
from memcheck.edge.screen import whole_number
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

KEYS = key_table("torchtune")

COMPONENT = "_component_"
"""The key of a section that names the class or function of a component, such as ``torchtune.models.llama3.llama3_8b``.
"""


def recognise(config: ConfigFile) -> str:
    """A component of torchtune's; or a command line that runs one of its recipes."""
    for key, value in config.values.items():
        if key.rpartition(".")[2] == COMPONENT and str(value).startswith("torchtune."):
            return key
    return launched(config)


def launched(config: ConfigFile) -> str:
    """``config`` where the text is a launch line, ``tune run ... --config``; empty for a config, whose comments may
    also name the command.
    """
    runs = (line for line in config.lines if not line.lstrip().startswith("#"))
    return "config" if config.has("config") and any("tune run" in line for line in runs) else ""


MODEL = f"model.{COMPONENT}"
LENGTH = "tokenizer.max_seq_len"
CUT = "dataset.max_seq_len"
"""What cuts rows before 0.3, where the tokenizer has no length of its own."""


FAKED = "Int8DynActInt4WeightQATQuantizer"
"""The quantizer of quantization-aware training with a memory model."""

PREFERENCES = "DPOLoss"
"""The loss over preferences that has a memory model."""

CHUNKS = "num_output_chunks"


MODELS = "torchtune.models."


class Builder(Record):
    """One ``model._component_``."""

    name: str
    """The name of the builder function in torchtune."""
    model: str
    """The catalog's model; empty for a builder of any size, and for one that is not known."""
    adapter: str = ""
    """``lora`` | ``qlora``; empty: the whole model is trained."""
    general: bool = False
    other: str = ""
    """What the builder makes instead of a text decoder; empty for a text decoder."""


def builder_of(component: str) -> Builder:
    """What a component of torchtune builds."""
    path = component.removeprefix(MODELS)
    folder, _, name = path.rpartition(".")
    adapter = next((each for each in ("qlora", "lora") if name.startswith(f"{each}_")), "")
    plain = name.removeprefix(f"{adapter}_") if adapter else name
    if not component.startswith("torchtune."):
        return Builder(name, "", adapter)
    other = next((what for part, what in KEYS.words["others"].items() if part in path), "")
    general = f"{folder}.{plain}" in KEYS.names["general"]
    model = KEYS.words["catalog"].get(plain.removesuffix("_base").removesuffix("_instruct"), "")
    return Builder(name=name, model=model, adapter=adapter, general=general, other=other)


def default_width(hidden: int) -> int:
    """Llama 2's ``scale_hidden_dim_for_mlp``: two thirds of four times the width, up to a multiple of 256."""
    return -(-4 * int(2 * hidden / 3) // 256) * 256


IMPLEMENTATION = "training.optimizer.implementation"


def optimizer(draft: Draft) -> None:
    """``optimizer._component_``, how torch's steps, and whether each tensor is stepped in backward."""
    path = f"optimizer.{COMPONENT}"
    component_optimizer(draft, path, text(draft, path), "optimizer.")
    if draft.config.has("optimizer_in_bwd"):
        in_backward = on(draft, "optimizer_in_bwd")
        draft.set("training.optimizer.in_backward", in_backward, "optimizer_in_bwd")


def component_optimizer(draft: Draft, path: str, component: str, section: str, usual: str = "foreach") -> None:
    """An optimizer by the class that a config names, and how torch's steps.

    torch.optim chooses foreach where neither ``fused`` nor ``foreach`` is stated, and a loop where either is false
    (torch/optim/adamw.py). ``path``: where the class stands; ``section``: what stands before the names of its
    arguments; ``usual``: the implementation of one without them.
    """
    config = draft.config
    name = KEYS.words["optimizers"].get(component, "")
    if not name:
        message = f"the states of `{path}: {component}` have no memory model"
        help = parts.STATE_IT.format("training.optimizer")
        draft.refuse(path, message, help, ("training.optimizer.name", "training.optimizer"))
    else:
        if name == "sgd" and str(config.values.get(f"{section}momentum") or 0) not in ("0", "0.0"):
            name = "sgd-momentum"
        draft.set("training.optimizer.name", name, path)
        if component.startswith("torch.optim."):
            _implementation(draft, section, usual)
    parts.third_state(draft, f"{section}amsgrad")
    config.see(*(f"{section}{name}" for name in ("fused", "foreach", "momentum")))


def _implementation(draft: Draft, section: str, usual: str) -> None:
    config = draft.config
    for switch in ("fused", "foreach"):
        if on(draft, f"{section}{switch}"):
            draft.set(IMPLEMENTATION, switch, f"{section}{switch}")
            return
    stated = next((each for each in ("fused", "foreach") if config.has(f"{section}{each}")), "")
    if stated:
        draft.set(IMPLEMENTATION, "for-loop", f"{section}{stated}")
    elif usual == "fused":
        draft.assume(IMPLEMENTATION, usual, "the script asks torch.optim for it on a GPU")
    else:
        draft.assume(IMPLEMENTATION, usual, "neither `fused` nor `foreach`: torch.optim's own choice on a GPU")


def checkpointing(draft: Draft) -> None:
    """``enable_activation_checkpointing``, or the newer ``ac_mode`` where that is off; both together are neither."""
    config = draft.config
    mode, key = f"{RECOMPUTE}.mode", "enable_activation_checkpointing"
    enabled, kind = on(draft, key), text(draft, "ac_mode").lower()
    config.see(key, "ac_mode", "ac_option")
    if kind in ("", "none"):
        draft.set(mode, "full" if enabled else "none", key)
    elif enabled:
        draft.set(mode, "none", "ac_mode")
        draft.note("ac_mode", f"with `{key}` it turns recompute off")
        return
    elif kind == "full":
        draft.set(mode, "full", "ac_mode")
    elif kind == "selective" and whole_number(text(draft, "ac_option")) is not None:
        every = draft.whole("ac_option", RECOMPUTE) or 1
        draft.set(mode, "full", "ac_mode")
        draft.set(f"{RECOMPUTE}.every_n_layers", every, "ac_option")
    else:
        message = f"`ac_mode: {kind}` with `ac_option: {text(draft, 'ac_option')}` has no memory model here"
        draft.refuse("ac_mode", message, "state a number of layers", (RECOMPUTE, mode))
    _offloading(draft)


def _offloading(draft: Draft) -> None:
    key = "enable_activation_offloading"
    if not on(draft, key):
        draft.config.see(key)
    elif draft.value(f"{RECOMPUTE}.mode") == "full":
        draft.set(f"{RECOMPUTE}.offload", "cpu", key)
    else:
        message = f"`{key}` needs `enable_activation_checkpointing`: the recipe stops without it"
        draft.refuse(key, message, "turn both on", (RECOMPUTE,))


def loss(draft: Draft) -> None:
    """``loss._component_`` and its chunks."""
    config, path = draft.config, f"loss.{COMPONENT}"
    name = text(draft, path).rpartition(".")[2]
    kind = KEYS.words["losses"].get(name, "")
    if kind:
        draft.set("training.loss.kind", kind, path)
        if kind != "standard":
            draft.rows((KeyRow(f"loss.{CHUNKS}", "training.loss.chunks"),))
    elif name not in (*KEYS.words["objectives"], PREFERENCES):
        written = text(draft, path)
        message = f"the loss `{written}` has no memory model here" if written else "the recipe does not say which loss"
        draft.refuse(path, message, parts.STATE_IT.format("training.loss"), ("training.loss", "training.loss.kind"))
    config.see(*(each for each in config.values if each.startswith("loss.")))


OBJECTIVE, TEACHER = "training.objective", "training.teacher.model.name"
DIVERGENCE, TAUGHT_BY = f"kd_loss.{COMPONENT}", f"teacher_model.{COMPONENT}"


def objective(draft: Draft) -> None:
    """``loss`` of the recipes over preferences; ``kd_loss`` and ``teacher_model`` of those that distill."""
    config, path = draft.config, f"loss.{COMPONENT}"
    if text(draft, path).rpartition(".")[2] == PREFERENCES:
        draft.set(f"{OBJECTIVE}.name", "dpo", path)
        full = draft.value("training.method") == "full"
        why = "full training's recipe holds a second model" if full else "the model without its adapters"
        draft.assume("training.reference", "resident" if full else "adapter-off", why)
    if config.has(DIVERGENCE) or config.has(TAUGHT_BY):
        _distilled(draft)
    config.see(*(each for each in config.values if each.startswith(("kd_loss.", "teacher_model."))))


def _distilled(draft: Draft) -> None:
    config = draft.config
    path, kind = DIVERGENCE, text(draft, DIVERGENCE).rpartition(".")[2]
    beta = KEYS.words["divergences"].get(kind)
    if beta is None:
        message = f"`{path}: {kind}`: the job is distillation by a divergence that has no memory model here"
        draft.refuse(path if kind else TAUGHT_BY, message, parts.STATE_IT.format(OBJECTIVE), (OBJECTIVE,))
    else:
        draft.set(f"{OBJECTIVE}.name", "distill", path)
        draft.set(f"{OBJECTIVE}.beta", beta, path)
    component = text(draft, TAUGHT_BY)
    builder = builder_of(component)
    if builder.model and not builder.adapter:
        draft.set(TEACHER, builder.model, TAUGHT_BY)
    else:
        message = f"`{component}` is an unknown model: no builder of a teacher that the catalog has a model for"
        place = TAUGHT_BY if component else path
        draft.refuse(place, message, "name the model that it builds", ("training.teacher", TEACHER))
    mine, theirs = (config.values.get(f"{name}.{CHUNKS}", 8) for name in ("loss", "kd_loss"))
    if mine != theirs:
        message = f"`kd_loss.{CHUNKS}: {theirs}`: the recipe stops at other chunks than its loss's {mine}"
        place = f"kd_loss.{CHUNKS}" if config.has(f"kd_loss.{CHUNKS}") else f"loss.{CHUNKS}"
        draft.refuse(place, message, "write the same number in both")


_RUN = re.compile(r"tune run\s+(?:--?[\w-]+(?:=\S+|\s+(?!-)\S+)?\s+)*?(?P<recipe>[\w./]+)(?=\s)")
_VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")
"""A variable of the shell, which is no reference to a key of the config."""
_LAUNCHER = (
    KeyRow("nnodes", "hardware.nodes"),
    KeyRow("nproc_per_node", "hardware.gpus_per_node", aliases=("nproc-per-node",)),
)
SINGLE = "_single_device"
PROGRAM, STARTS = "tune", ("run",)
"""The program, and its word before the recipe's name."""


class RecipeRun(Record):
    """A command that runs a recipe."""

    recipe: str
    location: Location
    comment: bool
    """Whether the command is in a comment. A command in a comment does not prove that the recipe is used."""

    @property
    def single(self) -> bool:
        """The recipe runs on one GPU alone."""
        return self.recipe.removesuffix(".py").endswith(SINGLE)


def command_of(config: ConfigFile) -> RecipeRun | None:
    """The first command of a launch line; in a config, the first that its comments name."""
    for command in commands_of(config.lines) if config.launch else ():
        found = _RUN.search(command.text[:2000])
        if found is not None:
            return RecipeRun(found["recipe"], command.at(config.path, *found.span("recipe")), comment=False)
    for number, line in enumerate(config.lines, 1):
        found = _RUN.search(line[:2000])
        if found is not None:
            at = Location(config.path, Span(number, found.start("recipe") + 1, number, found.end("recipe") + 1))
            return RecipeRun(found["recipe"], at, line.lstrip().startswith("#"))
    return None


def join_launch(draft: Draft) -> bool:
    """Take the keys of the config that a command names, and its overrides; False where there is none to take."""
    config = draft.config
    if not launched(config):
        return True
    draft.rows(_LAUNCHER)
    draft.harmless(key_table("transformers").inside["launcher"])
    words = [each for each in config.positionals if each.program == PROGRAM]
    recipe = next((number for number, each in enumerate(words) if each.text not in STARTS), len(words))
    overrides = {each.key for each in words if each.key}
    found = _named(draft, str(config.take("config")))
    if found is None:
        return False
    said = {key: (config.values[key], config.at(key)) for key in overrides if key in config.values}
    for key in said:
        del config.values[key]
    for key, value in found.values.items():
        config.adopt(key, value, found.at(key))
    config.change(config.instead)
    draft.sources[found.path] = found.lines
    for each in words[recipe + 1 :]:
        if each.key in said:
            _override(draft, each.key, *said.pop(each.key))
        elif not each.key:
            _remove(draft, each)
    return True


def _named(draft: Draft, name: str) -> ConfigFile | None:
    config = draft.config
    try:
        found = load_named(config, name, load_yaml)
    except ConfigError as error:
        draft.refuse("config", error.message, "mend the file")
        return None
    if found is not None:
        return found
    shipped = shipped_keys(SHIPPED, name)
    if shipped is not None:
        _, values = shipped
        at = config.at("config")
        draft.notes.append(Note(at, f"`{name}` is read as torchtune ships it at bd2a0fc7c (April 2026)", counted=True))
        return ConfigFile(config.path, values, lambda _: at, config.lines)
    if name.endswith((".yaml", ".yml")):
        draft.refuse("config", f"there is no `{name}` in the command's folder, nor where it runs", "mend the path")
    else:
        message = f"memcheck knows no config `{name}` of torchtune's"
        draft.refuse("config", message, f"write it to a file, and name that: tune cp {name} ./train.yaml")
    return None


SHIPPED = os.path.join(os.path.dirname(__file__), "torchtune_recipes.json")
"""The keys that bear on memory of each config that torchtune ships, by its name; under the empty name what most have,
of which null is what one has not (``benchmarks/torchtune_recipes.py``).
"""


def _remove(draft: Draft, word: Positional) -> None:
    """``~key``. A word of any other form is an error of torchtune's own, but for what the script's caller adds."""
    config = draft.config
    if word.text.startswith("~"):
        gone = word.text[1:].partition("=")[0]
        for key in [each for each in config.values if each == gone or each.startswith(f"{gone}.")]:
            del config.values[key]
    elif "$" in word.text:
        message = f"`{word.text}`: the script does not set it, and overrides in it are not read"
        draft.notes.append(Note(word.location, message))
    else:
        message = f"`{word.text}` is no override of torchtune's"
        draft.problems.append(ConfigProblem(word.location, message, "write key=value"))


def _override(draft: Draft, key: str, text: object, at: Location) -> None:
    """``key=value``, or ``component=path``."""
    config = draft.config
    key = f"{key}.{COMPONENT}" if f"{key}.{COMPONENT}" in config.values else key
    config.adopt(key, override_value(_VARIABLE.sub(r"$\1", str(text))), at)


def override_value(text: str) -> object:
    """A value as OmegaConf reads it from a command line: YAML's; ``None`` is null."""
    if text == "None":
        return None
    try:
        found = yaml.safe_load(text) if len(text) < 1000 else text
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(found, dict) else found


_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
DEPTH = 16
"""References that lead to references; what goes on for longer goes in a circle."""
LONGEST = 10_000
"""The most characters that a value may have after its references are replaced."""


def interpolate(config: ConfigFile) -> dict[str, str]:
    """Put values in place of references to them. Returns what is left: key to the reference that nothing answers."""
    left: dict[str, str] = {}
    for key in list(config.values):
        _settle(config, key, left, DEPTH)
    return left


def _settle(config: ConfigFile, key: str, left: dict[str, str], depth: int) -> None:
    """Answer the references of one value, once."""
    value = config.values[key]
    if key in left or not isinstance(value, str) or "${" not in value:
        return
    found, missing = _resolved(config, key, value, left, depth) if depth else (value, value[:100])
    config.values[key] = found
    if missing:
        left[key] = missing


def _resolved(config: ConfigFile, key: str, value: str, left: dict[str, str], depth: int) -> tuple[object, str]:
    """A value with its references answered, and the first that cannot be."""
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return _answer(config, key, whole, left, depth)
    text, place = "", 0
    for found in _REFERENCE.finditer(value[:LONGEST]):
        answer, missing = _answer(config, key, found, left, depth)
        if missing or len(text) > LONGEST:
            return value, missing or value[:100]
        text += f"{value[place : found.start()]}{answer}"
        place = found.end()
    result = text + value[place:]
    return (result, "") if "${" not in result else (value, value[:100])


def _answer(config: ConfigFile, key: str, found: re.Match[str], left: dict[str, str], depth: int) -> tuple[object, str]:
    name = _absolute(key, found[1].strip())
    if ":" in name or name not in config.values or isinstance(config.values[name], (dict, list)):
        return found[0], found[0]
    _settle(config, name, left, depth - 1)
    return (found[0], left[name]) if name in left else (config.values[name], "")


def _absolute(key: str, name: str) -> str:
    """The absolute key for a relative ``name``. ``.name`` is in the section of ``key``, ``..name`` in the section
    above.
    """
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parents = key.split(".")[:-dots]
    return ".".join([*parents, name[dots:]])
