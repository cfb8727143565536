"""The parts of a torchtune recipe: models, losses, optimizers and recompute, by their components."""

from __future__ import annotations

from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_parts import RECOMPUTE, on, text
from memcheck.configs.types import KeyRow
from memcheck.edge.screen import whole_number
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
