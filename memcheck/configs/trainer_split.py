"""The ``deepspeed`` and ``fsdp`` sections of TrainingArguments: inline, in files, or shipped by a trainer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping

from memcheck.configs.config_file import ConfigFile, load_json, parse_text
from memcheck.configs.draft import Draft
from memcheck.configs.read_deepspeed import read_deepspeed
from memcheck.configs.trainer_parts import KEYS, TRUE, Division
from memcheck.configs.types import ConfigError, ConfigProblem, Note, ReadConfig
from memcheck.edge.opener import is_file, is_inside, real_path, repository
from memcheck.plan.text import shown_path

STAGE, GROUP = "parallelism.zero_stage", "parallelism.shard_group"
RESHARDED = "parallelism.reshard_after_forward"
PRECISION = "training.precision"
MICRO, STEPS = "training.micro_batch_size", "training.gradient_accumulation_steps"
OWN = (
    "training.framework",
    PRECISION,
    "training.activation_checkpointing",
    MICRO,
    STEPS,
    "training.global_batch_size",
    "training.clip_grad_norm",
)
"""What the trainer's arguments say for the engine, too."""
_STRATEGIES = {
    "full_shard": (3, True, False),
    "shard_grad_op": (3, False, False),
    "hybrid_shard": (3, True, True),
    "hybrid_shard_zero2": (3, False, True),
    "no_shard": (0, True, False),
}
_PART = re.compile(r"(?:MoeBlock|Experts|MLP|Attention|Linear)(?:,|$)", re.IGNORECASE)
_NUMBERS = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard", "5": "hybrid_shard_zero2"}


def deepspeed(
    draft: Draft, path: str, world: int | None, shipped: Mapping[str, Mapping[str, object]] | None = None
) -> Division | None:
    """The engine that ``path`` states or names, joined into the draft; None without one."""
    config = draft.config
    below = [key for key in config.values if key.startswith(f"{path}.")]
    config.see(path, *below)
    if not below and not config.has(path):
        return None
    draft.derive("training.framework", "deepspeed", f"the config has `{path}`")
    if not config.has(path) or set(below) - config.instead.keys():
        inner = {key[len(path) + 1 :]: config.values[key] for key in below}
        engine = ConfigFile(config.path, inner, lambda key: config.at(f"{path}.{key}"), config.lines)
    else:
        found = _named(draft, path, str(config.values[path]), shipped or {})
        if found is None:
            return Division(engine=True)
        engine = found
        engine.change({key[len(path) + 1 :]: config.values[key] for key in below})
    _join(draft, read_deepspeed(engine, world or _started(draft)))
    return Division(engine=True)


def _started(draft: Draft) -> int | None:
    """How many processes the launcher starts, where it says so."""
    per_node, nodes = draft.value("hardware.gpus_per_node"), draft.value("hardware.nodes") or 1
    return per_node * nodes if isinstance(per_node, int) and isinstance(nodes, int) else None


def _named(draft: Draft, path: str, name: str, shipped: Mapping[str, Mapping[str, object]]) -> ConfigFile | None:
    config = draft.config
    if name.startswith("$") and not config.written(name):
        refuse_unread(draft, path, name, f"how the job is split: --set {STAGE}=3", (STAGE,))
        return None
    try:
        found = load_named(config, name, load_json)
    except ConfigError as error:
        draft.refuse(path, error.message, "mend the file", (STAGE,))
        return None
    if found is not None:
        return found
    stem = os.path.splitext(name.rpartition("/")[2])[0]
    if stem in shipped:
        at = config.at(path)
        return ConfigFile(config.path, dict(shipped[stem]), lambda _key: at, config.lines)
    draft.refuse(
        path,
        missing(config, name),
        "mend the path, or state how the job is split: --set parallelism.zero_stage=3",
        (STAGE,),
    )
    return None


def refuse_unread(draft: Draft, path: str, name: str, instead: str = "", keys: tuple[str, ...] = ()) -> None:
    """Refuse a file whose name is a variable that nothing in the script sets to plain text."""
    variable = name.strip("${}").partition("}")[0].partition("/")[0]
    help = f"say what it is: --define {variable}={'VALUE' if '/' in name else 'FILE'}"
    message = f"`{path}: {name}` is a variable whose value cannot be read from the script"
    draft.refuse(path, message, f"{help}, or state {instead}" if instead else help, keys)


def named_files(config: ConfigFile, name: str) -> list[str]:
    """Paths where a file that a config names may be: in the config's folder, in one above it, or where the command
    runs.
    """
    folder = os.path.dirname(config.path)
    root = config.inside or repository(real_path(folder or "."))[0]
    found = []
    here = real_path(folder or ".")
    while True:
        found.append(os.path.join(here, name))
        if here == root or os.path.dirname(here) == here or not here.startswith(root):
            break
        here = os.path.dirname(here)
    found.append(real_path(name))
    usable = [each for each in found if is_inside(real_path(each), root)]
    absolute = os.path.isabs(config.path)
    return [shown_path(each if absolute else os.path.relpath(each)) for each in dict.fromkeys(usable)]


def missing(config: ConfigFile, name: str) -> str:
    """Why no file of this name is read."""
    folder = real_path(os.path.dirname(config.path) or ".")
    root = config.inside or repository(folder)[0]
    if not named_files(config, name) or not is_inside(real_path(os.path.join(folder, name)), root):
        return f"`{name}` lies outside the config's repository or folder, and memcheck reads no file outside of it"
    return f"there is no `{name}` in the config's folder, nor at the top of its repository"


def load_named(config: ConfigFile, name: str, load: Callable[[str, str], ConfigFile]) -> ConfigFile | None:
    """The first file of this name that is there; None: there is none.

    Raises:
        ConfigError: it cannot be read, or ``load`` cannot use its text.
    """
    if config.written(name):
        return load(config.path, config.written(name))
    path = next((each for each in named_files(config, name) if is_file(each)), None)
    if path is None:
        return None
    try:
        return load(path, parse_text(path, config.read(path)))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _join(draft: Draft, engine: ReadConfig) -> None:
    """The engine's settings under those of the trainer, which fills in every ``auto``."""
    for key, setting in engine.settings.items():
        if key.startswith(OWN):
            continue
        if key == "training.optimizer.name" and setting.assumed:
            continue
        draft.settings[key] = setting
    said = engine.settings.get(PRECISION)
    if said is not None and not said.assumed and said.value != "fp32":
        draft.engine_precision = said
    for key in (MICRO, STEPS):
        if key in engine.settings and not engine.settings[key].assumed:
            draft.engine_batch[key] = engine.settings[key]
    draft.notes += engine.notes
    draft.problems += beside(engine.problems, OWN)
    draft.sources.update(engine.sources)


def engine_batch(draft: Draft) -> None:
    """Sizes in the engine's file count where the arguments are silent; where they differ, the Trainer does not start
    (``integrations/deepspeed.py``, trainer_config_process), and a script of its own may take either.
    """
    for key, said in draft.engine_batch.items():
        held = draft.settings.get(key)
        if held is None or held.value == said.value or said.location is None:
            continue
        if held.assumed:
            draft.settings[key] = said
        else:
            message = f"`{key}` is {said.value} by the engine's file and {held.value} by the arguments, which are read"
            draft.notes.append(Note(said.location, message))


def beside(problems: Iterable[ConfigProblem], own: tuple[str, ...]) -> list[ConfigProblem]:
    """The problems of a file that are not settled by what the trainer's arguments say of their keys."""
    return [each for each in problems if not each.keys or not all(key.startswith(own) for key in each.keys)]


def fsdp(draft: Draft, switch: str, section: str, *, version: int, versions: tuple[str, ...] = ()) -> Division | None:
    """FSDP by its words and its section; None where the config has neither. ``version`` is the release's default."""
    config = draft.config
    written = config.take(switch)
    below = [key for key in config.values if key.startswith(f"{section}.")]
    config.see(section, *below)
    if written in (None, "", False, "false", "False") and not below and not config.has(section):
        return None
    words = written if isinstance(written, list) else str("" if written is None else written).split()
    words = [str(word).lower() for word in words]
    unset = next((str(each) for each in (written, config.values.get(section)) if str(each).startswith("$")), "")
    if unset and not config.written(unset):
        refuse_unread(draft, switch, unset, f"how the job is split: --set {STAGE}=3", (STAGE,))
        return Division(sharded=True)
    values = {key[len(section) + 1 :].removeprefix("fsdp_"): key for key in below}
    at = switch if config.has(switch) else next(iter(below), section)
    if isinstance(config.values.get(section), str):
        named = _section_file(draft, section)
        if named is None:
            return Division(sharded=True)
        values = named
    _version(draft, values, at, version, versions)
    _strategy(draft, words, values, at)
    sharded = draft.value(STAGE) == 3
    if "offload" in words or _is(draft, values, "offload_params") or _is(draft, values, "cpu_offload"):
        key = at if "offload" in words else values.get("offload_params", values.get("cpu_offload", at))
        draft.set("training.offload.parameters", "cpu", key)
        draft.set("training.optimizer.offload", "cpu", key)
    if _is(draft, values, "activation_checkpointing"):
        draft.set("training.activation_checkpointing.mode", "full", values["activation_checkpointing"])
        draft.settings.pop("training.activation_checkpointing.reentrant", None)
    if _is(draft, values, "cpu_ram_efficient_loading") and sharded:
        draft.set("training.initialization.place", "rank0", values["cpu_ram_efficient_loading"])
    _state_dict(draft, values)
    _rest(draft, values)
    return Division(sharded=sharded)


def replicas(draft: Draft, path: str, count: int, world: int | None) -> None:
    """Copies of the sharded model, ``count`` of them, over as many GPUs each as that leaves."""
    tensor = draft.value("parallelism.tensor") or 1
    if world is None or not isinstance(tensor, int):
        message = f"`{path}: {count}`: how many GPUs share one copy depends on how many there are"
        draft.refuse(path, message, "state the ranks that share one: --set parallelism.shard_group=8", (GROUP,))
    else:
        draft.set(GROUP, max(1, world // tensor // count), path)


def _section_file(draft: Draft, section: str) -> dict[str, str] | None:
    """``fsdp_config`` may name a JSON file, whose keys are read as if they stood here."""
    config = draft.config
    name = str(config.values[section])
    found = load_named(config, name, load_json)
    if found is None:
        draft.refuse(section, f"there is no `{name}` in the config's folder", "mend the path", (STAGE,))
        return None
    at = config.at(section)
    for key, value in found.values.items():
        config.adopt(f"{section}.{key}", value, at)
        config.see(f"{section}.{key}")
    return {key.removeprefix("fsdp_"): f"{section}.{key}" for key in found.values}


def _is(draft: Draft, values: Mapping[str, str], name: str) -> bool:
    return name in values and draft.config.values[values[name]] in TRUE


def _version(draft: Draft, values: Mapping[str, str], at: str, version: int, versions: tuple[str, ...]) -> None:
    path = next((name for name in versions if draft.config.has(name)), values.get("version", ""))
    draft.config.see(*versions)
    number = draft.whole(path, STAGE) if path else None
    if (number or version) in (1, 2):
        draft.set("training.options.fsdp_version", number or version, path or at)


def _strategy(draft: Draft, words: list[str], values: Mapping[str, str], at: str) -> None:
    config = draft.config
    word = next((each for each in words if each in _STRATEGIES), "full_shard")
    path = at
    for name in ("sharding_strategy", "reshard_after_forward"):
        if name in values and config.has(values[name]):
            path, written = values[name], config.values[values[name]]
            if isinstance(written, bool) or str(written).lower() in ("true", "false"):
                word = "full_shard" if str(written).lower() == "true" else "shard_grad_op"
            else:
                word = _NUMBERS.get(str(written), str(written).lower().rpartition(".")[2])
    if word not in _STRATEGIES:
        draft.refuse(path, f"`{word}` is no sharding strategy", ", ".join(_STRATEGIES), (STAGE,))
        return
    stage, reshard, hybrid = _STRATEGIES[word]
    draft.set(STAGE, stage, path)
    if stage == 3:
        draft.set(RESHARDED, reshard, path)
    if hybrid:
        per_node = draft.value("hardware.gpus_per_node") or config.gpus_per_node
        if isinstance(per_node, int):
            draft.set(GROUP, per_node, path)
        else:
            draft.refuse(path, f"`{word}` shards within a node", "state --gpus-per-node", (GROUP,))


def _state_dict(draft: Draft, values: Mapping[str, str]) -> None:
    path = values.get("state_dict_type", "")
    written = str(draft.config.values.get(path) or "").upper()
    kinds = {"FULL_STATE_DICT": "full", "SHARDED_STATE_DICT": "sharded"}
    if written in kinds:
        if "training.checkpoint.state_dict" not in draft.settings:
            draft.set("training.checkpoint.state_dict", kinds[written], path)
    elif written:
        draft.note(path, f"`{written}` is not modelled: full or sharded")


def note_units(draft: Draft, path: str, classes: str) -> None:
    """Where FSDP makes units of parts of layers, the rest of a layer belongs to the unit of the whole model."""
    if _PART.search(classes):
        draft.note(path, f"units of `{classes}`, parts of layers, are not modelled: memcheck shards layer by layer")


def _rest(draft: Draft, values: Mapping[str, str]) -> None:
    config = draft.config
    policy = str(config.values.get(values.get("auto_wrap_policy", "")) or "").upper()
    if policy == "NO_WRAP":
        draft.note(values["auto_wrap_policy"], "without a wrap policy the whole model is one unit")
    if policy == "SIZE_BASED_WRAP" or str(config.values.get(values.get("min_num_params", ""), 0)) not in ("0", "None"):
        draft.note(values.get("min_num_params", values.get("auto_wrap_policy", "")), "units by size are not modelled")
    prefetch = str(config.values.get(values.get("backward_prefetch", "")) or "BACKWARD_PRE").upper()
    if prefetch != "BACKWARD_PRE":
        draft.note(values["backward_prefetch"], f"`{prefetch}` is not modelled: memcheck gathers one ahead")
    if _is(draft, values, "forward_prefetch"):
        draft.note(values["forward_prefetch"], "explicit forward prefetch, one more gathered unit, is not modelled")
    wrapped = str(config.values.get(values.get("transformer_layer_cls_to_wrap", "")) or "")
    note_units(draft, values.get("transformer_layer_cls_to_wrap", ""), wrapped)
    known = {
        *KEYS.inside["fsdp_config"],
        "version",
        "sharding_strategy",
        "reshard_after_forward",
        "offload_params",
        "cpu_offload",
        "activation_checkpointing",
        "cpu_ram_efficient_loading",
        "state_dict_type",
        "auto_wrap_policy",
        "min_num_params",
        "backward_prefetch",
        "forward_prefetch",
    }
    for name, path in values.items():
        if name.partition(".")[0] not in known and config.has(path):
            draft.note(path, "not a key that memcheck knows of FSDP")


_AUTO: dict[str, object] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16.enabled": "auto",
    "fp16.enabled": "auto",
}


def _engine(stage: int, **options: object) -> Mapping[str, object]:
    zero = {f"zero_optimization.{name.replace('__', '.')}": value for name, value in options.items()}
    return {**_AUTO, "zero_optimization.stage": stage, **zero}


_STAGE_3: dict[str, object] = {
    "contiguous_gradients": True,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
_AXOLOTL_3: dict[str, object] = {
    **_STAGE_3,
    "overlap_comm": True,
    "sub_group_size": 0,
    "max_live_parameters": 0,
    "max_reuse_distance": 0,
    "gather_16bit_weights_on_model_save": True,
}
_WHOLE_3: dict[str, object] = {
    **_STAGE_3,
    "overlap_comm": False,
    "sub_group_size": 1_000_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_BUCKETS: dict[str, object] = {
    "allgather_bucket_size": 500_000_000,
    "reduce_bucket_size": 500_000_000,
    "overlap_comm": False,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}
_CPU: dict[str, object] = {"device": "cpu", "pin_memory": True}
_OPTIMIZER: dict[str, object] = {f"offload_optimizer__{name}": value for name, value in _CPU.items()}
_PARAMETERS: dict[str, object] = {f"offload_param__{name}": value for name, value in _CPU.items()}
_BF16: dict[str, object] = {"bf16.enabled": True}

AXOLOTL: dict[str, Mapping[str, object]] = {
    "zero1": _engine(1, overlap_comm=True),
    "zero1_torch_compile": _engine(1, overlap_comm=True),
    "zero2": _engine(2, offload_optimizer__device="cpu", contiguous_gradients=True, overlap_comm=True),
    "zero2_torch_compile": _engine(2, offload_optimizer__device="cpu", contiguous_gradients=True, overlap_comm=True),
    "zero3": _engine(3, **_AXOLOTL_3),
    "zero3_bf16": {**_engine(3, **_AXOLOTL_3), **_BF16},
    "zero3_bf16_cpuoffload_all": {**_engine(3, **_AXOLOTL_3, **_OPTIMIZER, **_PARAMETERS), **_BF16},
    "zero3_bf16_cpuoffload_params": {**_engine(3, **_AXOLOTL_3, **_PARAMETERS), **_BF16},
}
_FP8_BUCKETS: dict[str, object] = {
    "reduce_bucket_size": 12_845_056,
    "stage3_prefetch_bucket_size": 11_560_550,
    "stage3_param_persistence_threshold": 35_840,
}
LLAMA_FACTORY: dict[str, Mapping[str, object]] = {
    "ds_z0_config": _engine(0, **_BUCKETS),
    "ds_z2_config": _engine(2, **_BUCKETS),
    "ds_z2_offload_config": _engine(2, **_BUCKETS, **_OPTIMIZER),
    "ds_z2_autotp_config": {**_engine(2, **_BUCKETS), "tensor_parallel.autotp_size": 2},
    "ds_z3_config": _engine(3, **_WHOLE_3),
    "ds_z3_offload_config": _engine(3, **_WHOLE_3, **_OPTIMIZER, **_PARAMETERS),
    "ds_z3_fp8_config": {
        **_engine(3, **{**_WHOLE_3, **_FP8_BUCKETS, "offload_optimizer__device": "cpu"}),
        "fp16.enabled": False,
    },
}
_SWIFT_BUCKETS: dict[str, object] = {
    "allgather_bucket_size": 200_000_000,
    "reduce_bucket_size": 200_000_000,
    "overlap_comm": False,
    "contiguous_gradients": True,
}
SWIFT: dict[str, Mapping[str, object]] = {
    "zero0": _engine(0, **_SWIFT_BUCKETS),
    "zero1": _engine(1, **_SWIFT_BUCKETS),
    "zero2": _engine(2, **_SWIFT_BUCKETS),
    "zero2_offload": _engine(2, **_SWIFT_BUCKETS, **_OPTIMIZER),
    "zero3": _engine(3, **_WHOLE_3),
    "zero3_offload": _engine(3, **_WHOLE_3, **_OPTIMIZER, **_PARAMETERS),
}
