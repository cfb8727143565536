"""What every dialect of TrainingArguments says in much the same words: model, batch, optimizer, recompute."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.configs.draft import Draft, speaks
from memcheck.configs.key_table import TRAINERS, key_table
from memcheck.configs.launch_devices import allocator
from memcheck.configs.types import KeyRow
from memcheck.edge.opener import is_folder
from memcheck.errors import MemcheckError
from memcheck.families.registry import architecture_of
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.versions import TRANSFORMERS as OPTION
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec
from memcheck.record import Record

TRANSFORMERS = 4
"""From which major release on one is transformers'. The trainers' own are older by number, but for ms-swift's."""


def is_transformers(release: str) -> bool:
    """Whether the release of a job with transformers is that of transformers, not of the trainer on top of it."""
    found = re.match(r"v?(\d{1,9})", release)
    return found is not None and int(found[1]) >= TRANSFORMERS


def release_key(format: str, release: str, framework: object) -> str:
    """The dotted key of a plan that says it.

    ``framework``: that of the plan. DeepSpeed's and PyTorch's own releases are no transformers', which builds the model
    there, too.
    """
    if format == "vllm":
        return "inference.version"
    if not is_transformers(release):
        return "training.trainer.version" if format in (*TRAINERS, "python") else "training.framework_version"
    profile = FRAMEWORKS.get(str(framework))
    apart = profile is not None and not profile.version_is_transformers and OPTION in profile.options
    return f"training.options.{OPTION}" if apart else "training.framework_version"


KEYS = key_table("transformers")


TRUE = (True, "true", "True", "yes", "1", 1)
FALSE = (False, "false", "False", "no", "0", 0)
RECOMPUTE = "training.activation_checkpointing"
PADDED_ROWS = "rows are padded to the longest of a micro-batch: an upper bound"
STATE_IT = "state what comes closest: --set {}=VALUE"


class Division(Record):
    """How the training state is divided, as far as its dtypes depend on it."""

    engine: bool = False
    """DeepSpeed casts and keeps master weights itself."""
    sharded: bool = False
    """FSDP: Accelerate upcasts what is trained before it is sharded."""


def on(draft: Draft, path: str) -> bool:
    """A switch of the config, however YAML, JSON or a command line spells it."""
    return draft.config.take(path) in TRUE


def off(draft: Draft, path: str) -> bool:
    """A switch that the config turns off itself."""
    return draft.config.has(path) and draft.config.take(path) in FALSE


def text(draft: Draft, path: str) -> str:
    """A word of the config; empty where it is silent."""
    value = draft.config.take(path)
    return "" if value is None else str(value).strip()


def words(draft: Draft, path: str) -> list[str]:
    """A list of the config: YAML's, or words between commas or spaces."""
    value = draft.config.take(path)
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip())


def say(draft: Draft, key: str, value: object, path: str) -> bool:
    """State a key of the plan; where a plan has no such key or word, refuse the config's line by its name."""
    if speaks(key, value):
        draft.set(key, value, path)
        return True
    written = draft.config.values.get(path)
    message = f"`{path}: {written}` has no memory model here yet: a plan cannot say `{key}: {value}`"
    draft.refuse(path, message, STATE_IT.format(key), (key,))
    return False


def say_or_note(draft: Draft, key: str, value: object, path: str, effect: str) -> None:
    """State a key of the plan; where a plan has no such key, say what the estimate lacks."""
    if speaks(key, value):
        draft.set(key, value, path)
    else:
        draft.note(path, effect)


def assume_if_known(draft: Draft, key: str, value: object, why: str) -> None:
    """What the framework decides, where a plan has a key for it."""
    if speaks(key, value):
        draft.assume(key, value, why)


def model(draft: Draft, path: str) -> None:
    """The model by its repository's id. A folder on a disk is none, but for one that is called as a model is."""
    name = text(draft, path)
    if not name:
        return
    if draft.config.values.get(path) is True:
        draft.refuse(path, f"`{path}` has no value", "name the model: --model NAME", ("model", "model.name"))
        return
    if name.startswith("$"):
        message = f"`{path}: {name}` is a variable that the script does not set"
        draft.refuse(path, message, "name the model: --model NAME", ("model", "model.name"))
        return
    windows = re.match(r"[A-Za-z]:[\\/]|\.{0,2}\\", name) is not None
    if windows or name.startswith(("/", "./", "../", "~")) or name.count("/") > 1 or is_folder(name):
        last = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
        hyphened = re.sub(r"^([A-Za-z]+)(?=\d)", r"\1-", last)  # llama2-7b-hf for llama-2-7b-hf
        known = next((each for each in (last, hyphened) if is_known(each)), "")
        if known:
            draft.assume("model.name", known, f"the name of the folder `{name}`, whose config.json is not read")
            return
        message = f"`{path}: {name}` is a folder, and its config.json is not read from here"
        draft.refuse(path, message, "name the model that lies there: --model NAME", ("model", "model.name"))
        return
    draft.set("model.name", name, path)


def is_known(name: str) -> bool:
    """Whether the catalog has a model of this name."""
    try:
        architecture_of(ModelSpec(name=name))
    except MemcheckError:
        return False
    return True


def no_dtype(draft: Draft, path: str) -> None:
    """Refuse what is no dtype, or a variable that the script does not set."""
    written = text(draft, path)
    variable = re.match(r"\$\{?(\w+)", written)
    message = f"`{path}: {written}` is no dtype"
    help = ""
    if variable is not None:
        message = f"`{path}`: `{written}` is not set in the script"
        help = f"say what its caller does: --define {variable[1]}=bfloat16"
    draft.refuse(path, message, help, ("training.precision",))


def whole(draft: Draft, row: KeyRow, default: int | None, why: str = "") -> int | None:
    """A whole number of the config, or its framework's default."""
    draft.rows((row,))
    if row.key not in draft.settings and not any(row.key in each.keys for each in draft.problems):
        if default is not None:
            draft.assume(row.key, default, why)
        return default
    value = draft.value(row.key)
    return value if isinstance(value, int) else None


def length(
    draft: Draft, paths: tuple[str, ...], default: int | None, packed: bool, why: str = "", *, said: str = ""
) -> None:
    """Tokens per sequence: exact where rows are packed, else the longest that a row can be.

    ``said``: why every row is full, where no key packs rows.
    """
    row = KeyRow(paths[0], "training.sequence_length", aliases=paths[1:])
    whole(draft, row, default, why)
    if "training.sequence_length" in draft.settings:
        said = said or ("rows are packed" if packed else PADDED_ROWS)
        assume_if_known(draft, "training.sequences", "packed" if packed else "padded", said)


def optimizer(draft: Draft, path: str, default: str, why: str = "") -> None:
    """``optim``: the states it keeps, and how it steps."""
    key = "training.optimizer.name"
    written = text(draft, path).lower().removeprefix("optimizernames.")
    name, implementation = KEYS.words["optimizers"].get(written or default, ("", ""))
    if not name:
        message = f"the states of `{path}: {written}` have no memory model"
        known = ", ".join(dict.fromkeys(each for each, _ in KEYS.words["optimizers"].values()))
        help = f"state what comes closest of {known}: --set training.optimizer=adamw"
        draft.refuse(path, message, help, (key, "training.optimizer"))
        return
    if not written:
        draft.assume(key, name, why)
        if implementation:
            draft.assume("training.optimizer.implementation", implementation, why)
        return
    if say(draft, key, name, path) and implementation:
        draft.set("training.optimizer.implementation", implementation, path)
    if written.startswith("paged"):
        draft.config.see(path)


def default_optimizer(draft: Draft) -> tuple[str, str]:
    """``optim`` of the release: fused since transformers 5 (on torch 2.8 and later), foreach before."""
    if older(draft, 5):
        return "adamw_torch", "transformers 4's default"
    return "adamw_torch_fused", "transformers' default since 5.0 (--framework-version says another release)"


def older(draft: Draft, major: int, minor: int = 0) -> bool:
    """Whether the release that was stated is before another one: of transformers from 4 on, of its trainer below."""
    for first, second in re.findall(r"(?:^| )(\d{1,9})(?:\.(\d{1,9}))?", draft.config.version):
        if is_transformers(first) == is_transformers(str(major)):
            return (int(first), int(second or 0)) < (major, minor)
    return False


def recomputed(draft: Draft, path: str) -> None:
    """Count a switch of recompute and its arguments as read."""
    draft.config.see(path, f"{path}_kwargs", *(f"{path}_kwargs.{name}" for name in RECOMPUTED))


def offloaded(draft: Draft) -> bool:
    """Read ``activation_offloading``, which moves what autograd saves to the host (trl
    ``models/activation_offloading.py``). Return False where it is on and no block is recomputed: it has no model then.
    """
    draft.config.see(OFFLOADS)
    if not draft.config.has(OFFLOADS) or off(draft, OFFLOADS):
        return True
    recomputes = draft.value(f"{RECOMPUTE}.mode") == "full"
    if recomputes:
        draft.set(f"{RECOMPUTE}.offload", "cpu", OFFLOADS)
    return recomputes


OFFLOADS = "activation_offloading"
RECOMPUTED = ("use_reentrant", "every_n_layers", "offload", "preserve_rng_state", "determinism_check", "debug")
"""What Trainer takes out of ``gradient_checkpointing_kwargs``, and what of the rest, which is an argument of
``torch.utils.checkpoint``, keeps no tensor but a generator's state (transformers 5.23 ``trainer.py``; torch 2.13).
"""


def attention(draft: Draft, path: str, default: str = "sdpa") -> None:
    """``attn_implementation``; a kernel of the hub is a flash attention by its name."""
    key = "training.attention"
    written = text(draft, path).lower()
    found = KEYS.words["attentions"].get(written, "flash" if "flash" in written and "/" in written else "")
    if not written:
        draft.assume(key, default)
    elif found:
        draft.set(key, found, path)
    else:
        message = f"the attention kernel `{path}: {written}` has no memory model"
        draft.refuse(path, message, STATE_IT.format(key), (key,))


def labelled(draft: Draft, path: str, kind: str, said: str) -> None:
    """A head that classifies, said by ``said``; ``path``: how many labels it has."""
    if say(draft, "training.head.kind", kind, said) and kind in ("classification", "token-classification"):
        draft.rows((KeyRow(path, "training.head.labels"),))
    draft.config.see(path)


def clipping(draft: Draft, path: str) -> None:
    """``max_grad_norm``: 1.0 unless the config says otherwise; 0 turns it off."""
    key, written = "training.clip_grad_norm", draft.config.take(path)
    if written is None and key not in draft.settings:
        draft.assume(key, True)
    elif written is not None:
        draft.set(key, str(written) not in ("0", "0.0", "False", "false"), path)


def compiled(draft: Draft, path: str) -> None:
    """``torch_compile``."""
    if draft.config.has(path) and not draft.value("training.compile"):
        draft.set("training.compile", draft.config.take(path) not in FALSE, path)


def saved(draft: Draft, strategy: str = "save_strategy", only_model: str = "save_only_model") -> None:
    """What a checkpoint gathers: nothing where nothing is saved, no optimizer where only the model is."""
    if text(draft, strategy).lower() in ("no", "none", "false"):
        draft.set("training.checkpoint.state_dict", "none", strategy)
    elif draft.config.has(only_model) and on(draft, only_model):
        draft.set("training.checkpoint.optimizer", False, only_model)
    draft.config.see(strategy, only_model)


def launcher(draft: Draft) -> None:
    """Read arguments of torchrun and accelerate on the same command line, and variables that are set before it."""
    config = draft.config
    allocator(draft)
    for name, key in KEYS.words["launcher"].items():
        least = re.fullmatch(r"(\d+):\1", str(config.values.get(name, "")))  # torchrun's MIN:MAX
        if least is not None:
            config.values[name] = least[1]
        if config.has(name):
            draft.rows((KeyRow(name, key),))
    # accelerate's: of all machines that it is told of; what starts it on `num_nodes` multiplies them (open-instruct's)
    processes = draft.whole("num_processes", "hardware.gpus_per_node")
    machines = draft.whole("num_machines", "hardware.nodes") or 1
    if processes and processes % machines:
        message = f"{processes} processes do not divide over {machines} machines"
        draft.refuse("num_processes", message, keys=("hardware.gpus_per_node",))
    elif processes:
        draft.set("hardware.gpus_per_node", processes // machines, "num_processes")
    included = re.fullmatch(r"[\w.-]+:(\d+(?:,\d+)*)", str(config.values.get("include", "")))
    if included is not None:  # of the launcher `deepspeed`: the GPUs of one host
        draft.set("hardware.gpus_per_node", len(included[1].split(",")), "include")
    for name in ("gres", "gpus_per_node"):  # Slurm's
        asked = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,3})", str(config.values.get(name, "")))
        if asked is not None and "hardware.gpus_per_node" not in draft.settings:
            draft.set("hardware.gpus_per_node", int(asked[1]), name)
    draft.harmless(KEYS.inside["launcher"])


def irrelevant(draft: Draft, own: Mapping[str, tuple[str, ...]]) -> None:
    """The keys of TrainingArguments and of one dialect that move no memory."""
    draft.irrelevant(KEYS.irrelevant)
    draft.irrelevant(own)


def third_state(draft: Draft, path: str) -> None:
    """Refuse ``amsgrad``, which keeps a third state as large as the parameters: the highest second moment so far."""
    if on(draft, path):
        key = "training.optimizer"
        message = f"`{path}` keeps a third state of every parameter, which has no memory model"
        draft.refuse(path, message, STATE_IT.format(key), (key, f"{key}.name"))


KEY = "training.freeze"


def last_layers(draft: Draft, kind: str = "finetuning_type", section: str = "") -> None:
    """Read freeze tuning: the last or the first N layers train, and embedding, final norm and head are frozen.

    ``kind``: the key that asks for freeze tuning; ``section``: the prefix of the other keys' names. A negative
    ``freeze_trainable_layers`` means the first layers. Named modules, or an unknown number of layers, are refused.
    """
    path = f"{section}freeze_trainable_layers"
    count = draft.whole(path, KEY)
    count = 2 if count is None else count
    layers = layers_of(draft)
    modules, extra = (text(draft, f"{section}freeze_{which}_modules") for which in ("trainable", "extra"))
    if modules not in ("", "all") or extra or layers is None or not 0 < abs(count) <= layers:
        at = path if draft.config.has(path) else kind
        help = "state what is frozen: --set training.freeze=[embed, head, norm, layers:0-30]"
        draft.refuse(at, "which part is trained is not read from here", help, (KEY,))
        return
    frozen = f"layers:0-{layers - count}" if count > 0 else f"layers:{-count}-{layers}"
    parts = ["embed", "head", "norm", *([frozen] if abs(count) < layers else [])]
    draft.set(KEY, parts, path if draft.config.has(path) else kind)


def layers_of(draft: Draft) -> int | None:
    """How many blocks the model has, if the catalog knows it."""
    found = architecture_named(draft)
    return found.num_layers if found is not None else None


def architecture_named(draft: Draft) -> Architecture | None:
    """The model that the config names, if the catalog knows it."""
    return known_architecture(str(draft.value("model.name") or draft.value("model")))


def same_dimensions(one: Architecture, other: Architecture) -> bool:
    """Whether two models have as wide and as many layers of the same kinds."""
    return (one.hidden_size, one.blocks) == (other.hidden_size, other.blocks)


def known_architecture(name: str) -> Architecture | None:
    """The model of this name, if the catalog knows it."""
    try:
        architecture = architecture_of(ModelSpec(name=name))
    except MemcheckError:
        return None
    return architecture if isinstance(architecture, Architecture) else None
