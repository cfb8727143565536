"""Reads a job off its living objects: the model, its parameters, ``TrainingArguments``, optimizer, processes, GPU.

Everything is said in the keys of ``TrainingArguments`` and TRL's configs, so that the readers of ``memcheck.configs``
make the plan. Objects are told by their classes' names and attributes: this module imports neither torch nor
transformers, and takes torch from ``sys.modules``, where every job has it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from memcheck.record import Record

GIB = 2**30
STATED = frozenset(
    {
        *("activation_offloading", "attn_implementation", "bf16", "fp16", "eval_strategy", "loss_type", "optim"),
        *("gradient_accumulation_steps", "gradient_checkpointing", "gradient_checkpointing_kwargs", "max_grad_norm"),
        *("activation_checkpointing", "activation_checkpointing_kwargs"),
        *("max_length", "max_seq_length", "packing", "padding_free", "precompute_ref_log_probs"),
        *("per_device_eval_batch_size", "per_device_train_batch_size", "use_liger_kernel"),
    }
)
"""Keys that are always stated: their defaults differ between releases and trainers, and the object knows its own."""
ELSEWHERE = frozenset({"use_cpu", "no_cuda", "deepspeed", "report_to", "model_init_kwargs"})
"""Keys that say nothing of the job on its GPU, or that are read off the objects themselves."""
TRAINERS = {"SFTConfig": "sft", "DPOConfig": "dpo", "RewardConfig": "reward", "KTOConfig": "kto"}
"""TRL's configs of jobs with a memory model, and the objective of each."""
HEADS = {"ForSequenceClassification": "classification", "ForTokenClassification": "token-classification"}
LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForSeq2SeqLM")
"""Ends of the names of classes that end in a language model's head."""
DTYPES = {"torch.float32": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}
PLAN_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
OPTIMIZERS = {
    ("torch", "AdamW"): "adamw_torch",
    ("torch", "Adam"): "adamw_torch",
    ("torch", "SGD"): "sgd",
    ("torch", "Adafactor"): "adafactor",
    ("transformers", "Adafactor"): "adafactor",
    ("bitsandbytes", "AdamW8bit"): "adamw_bnb_8bit",
    ("bitsandbytes", "Adam8bit"): "adamw_bnb_8bit",
    ("bitsandbytes", "PagedAdamW"): "paged_adamw_32bit",
    ("bitsandbytes", "PagedAdamW32bit"): "paged_adamw_32bit",
    ("bitsandbytes", "PagedAdamW8bit"): "paged_adamw_8bit",
    ("bitsandbytes", "Lion"): "lion_32bit",
    ("bitsandbytes", "Lion8bit"): "lion_8bit",
}
"""``optim`` of TrainingArguments by the package and class of an optimizer. Adam has the states of AdamW."""
SHARDING = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard", "5": "hybrid_shard_zero2"}
"""torch's ``ShardingStrategy`` by value, as TrainingArguments names it."""
LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d{1,6})\.")
MOST_ROWS, MOST_S = 512, 0.2
"""Rows of a data set whose length is looked at, and seconds for all of them."""


class UnreadJobError(Exception):
    """The job cannot be read off its objects; the text says what is in the way."""


class LiveGpu(Record):
    """The GPU of this process."""

    name: str
    total_bytes: int
    """0: a GPU that was named, whose memory is that of the catalog."""
    free_bytes: int = 0
    reserved_bytes: int = 0
    """What the allocator of this process holds."""


class LiveJob(Record):
    """A job in the keys of its trainer, and what only its objects know."""

    arguments: Mapping[str, Any]
    """The keys and values that a file of the same arguments would have."""
    objective: str
    """What TRL's trainer optimizes (``sft``, ``dpo``); empty: transformers' own trainer, or a loop."""
    source: str
    """What said the arguments: the name of their class."""
    settings: Mapping[str, object]
    """Dotted keys of the plan that no argument says."""
    model_config: Mapping[str, Any]
    """The model's ``config.json``."""
    version: str
    """The release of TRL, or of transformers where that is the trainer; empty: not known."""
    parameters: int
    """Number of the whole model's parameters; 0 where its shards do not tell."""
    trainable: int
    """Number of the parameters that get a gradient; 0 where shards do not tell."""
    notes: tuple[str, ...] = ()
    """What was assumed, or is not in the plan."""
    above: tuple[str, ...] = ()
    """Why the plan may need more than the job does: then it never ends the job."""


def unwrapped(model: Any) -> Any:
    """The model inside the wrappers of DDP, FSDP, DeepSpeed and ``torch.compile``."""
    for _ in range(8):
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DeepSpeedEngine", "DataParallel"):
            inner = model.module
        if inner is None and type(model).__name__ == "FullyShardedDataParallel":
            inner = getattr(model, "module", None)
        if inner is None:
            return model
        model = inner
    return model


def world() -> tuple[int, int, int]:
    """This process's rank, the GPUs of a node, and the nodes: of ``torchrun``'s environment, or one process.

    Raises:
        UnreadJobError: the processes are not divided evenly over the nodes.
    """
    size = _number(os.environ.get("WORLD_SIZE"), 1)
    local = _number(os.environ.get("LOCAL_WORLD_SIZE"), 0)
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    rank = _number(os.environ.get("RANK"), 0)
    if group is not None and group.is_available() and group.is_initialized():
        size, rank = group.get_world_size(), group.get_rank()
    if not local:
        count = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else size
        local = min(size, count) or 1
    if size % local:
        raise UnreadJobError(f"{size} processes do not divide over nodes of {local} GPUs")
    return rank, local, size // local


def device(stated: str) -> LiveGpu | None:
    """The named GPU, or that of this process; None without either."""
    if stated:
        return LiveGpu(name=stated, total_bytes=0)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return LiveGpu(
        name=torch.cuda.get_device_name(),
        total_bytes=total,
        free_bytes=free,
        reserved_bytes=torch.cuda.memory_reserved(),
    )


def read_job(
    model: Any, args: Any, optimizer: Any, rows: Any, stated: Mapping[str, object], length: int | None
) -> LiveJob:
    """The job. ``args``: TrainingArguments or a config of TRL's; None: a loop of one's own.

    ``rows``: the data set or loader whose rows are looked at where no length is stated; ``stated``: further keys of
    TrainingArguments, which go before those of ``args``; ``length``: tokens of the longest row.

    Raises:
        UnreadJobError: the model has no configuration, or the objects say what has no memory model.
    """
    whole = unwrapped(model)
    base = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    config: Any = getattr(base, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise UnreadJobError(f"{type(base).__name__} has no configuration of transformers")
    kind = _trl_kind(args)
    if getattr(args, "n_gpu", 1) > 1:
        raise UnreadJobError(f"one process drives {args.n_gpu} GPUs (DataParallel), which has no memory model here")
    notes: list[str] = []
    above: list[str] = []
    found = _arguments(args) | _division(args)
    settings: dict[str, object] = {}
    parameters = list(_named_parameters(whole))
    _weights(whole, base, parameters, found, settings, above)
    _head(base, config, settings)
    _recompute(base, found)
    _optimizer(optimizer, found, notes)
    if kind and _release("transformers"):
        settings["training.framework_version"] = _release("transformers")
    found |= stated
    if length is not None:
        found["max_length"] = length
    elif not any(found.get(key) for key in ("max_length", "max_seq_length")):
        longest = _longest(rows)
        if longest is not None:
            found["max_length"], told = longest
            notes.append(told)
    sharded = any(type(each).__name__ == "FlatParameter" for _, each in parameters)
    written = _plain(config.to_dict())
    written["architectures"] = [type(base).__name__]
    return LiveJob(
        arguments=_plain(found),
        objective=kind,
        source="the loop" if args is None else type(args).__name__,
        settings=settings,
        model_config=written,
        version=_release("trl" if kind else "transformers"),
        parameters=0 if sharded else sum(numel(each) for _, each in parameters),
        trainable=0 if sharded else sum(numel(each) for _, each in parameters if each.requires_grad),
        notes=tuple(notes),
        above=tuple(above),
    )


def numel(parameter: Any) -> int:
    """Elements of a whole parameter: of ZeRO-3 and 4-bit ones those that their own attributes name."""
    whole = getattr(parameter, "ds_numel", None)
    if isinstance(whole, int):
        return whole
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    if shape is not None:
        count = 1
        for each in shape:
            count *= int(each)
        return count
    return int(parameter.numel())


def local_bytes(tensors: Iterable[Any]) -> int:
    """Bytes that tensors have in this process: of a ``DTensor`` those of its own shard."""
    count = 0
    for each in tensors:
        own = each.to_local() if hasattr(each, "to_local") else each
        count += own.numel() * own.element_size()
    return count


def state_tensors(optimizer: Any) -> Iterator[Any]:
    """The tensors of an optimizer's states, of which a step counter is not one."""
    inner = getattr(optimizer, "optimizer", optimizer)
    for state in list(getattr(inner, "state", {}).values()):
        for each in state.values() if isinstance(state, Mapping) else ():
            if hasattr(each, "element_size") and each.numel() > 1:
                yield each


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 8 else default


def _trl_kind(args: Any) -> str:
    """The objective of a config of TRL's; empty for plain TrainingArguments.

    Raises:
        UnreadJobError: TRL's trainer of this config has no memory model.
    """
    for each in type(args).__mro__:
        if each.__module__.partition(".")[0] == "trl" and each.__name__ not in ("_BaseConfig", "BaseConfig"):
            if each.__name__ not in TRAINERS:
                raise UnreadJobError(f"the trainer of TRL's {each.__name__} has no memory model here")
            return TRAINERS[each.__name__]
    return ""


def _arguments(args: Any) -> dict[str, Any]:
    """What differs from the defaults of the arguments' class, and what is always stated."""
    if args is None:
        return {}
    if not dataclasses.is_dataclass(args) or not hasattr(args, "to_dict"):
        raise UnreadJobError(f"{type(args).__name__} is not transformers' TrainingArguments")
    defaults = {}
    for field in dataclasses.fields(args):
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        defaults[field.name] = _plain(default)
    found = {}
    for key, value in args.to_dict().items():
        if key in ELSEWHERE:
            continue
        plain = _plain(value)
        if key in STATED or plain != defaults.get(key):
            found[key] = plain
    return {key: each for key, each in found.items() if each not in (None, [], {}) or key == "max_length"}


def _division(args: Any) -> dict[str, Any]:
    """DeepSpeed's config, or FSDP's, as Accelerate runs it: a launcher may say what the arguments do not."""
    engine = getattr(getattr(args, "hf_deepspeed_config", None), "config", None) or getattr(args, "deepspeed", None)
    module = sys.modules.get("accelerate.state")
    state = getattr(getattr(module, "AcceleratorState", None), "_shared_state", None) or {}
    plugins = state.get("deepspeed_plugins") or {}
    if engine is None and plugins:
        plugin = next(iter(plugins.values())) if isinstance(plugins, Mapping) else plugins
        engine = getattr(plugin, "deepspeed_config", None)
    if engine is not None:
        return {"deepspeed": _plain(engine)}
    plugin = state.get("fsdp_plugin")
    if plugin is None or getattr(args, "fsdp", None):
        return {}
    reshard = getattr(plugin, "reshard_after_forward", True)
    version = getattr(plugin, "fsdp_version", 1)
    strategy = getattr(getattr(plugin, "sharding_strategy", None), "value", None)
    word = SHARDING.get(str(strategy), "full_shard") if version == 1 else "full_shard" if reshard else "shard_grad_op"
    offloads = getattr(getattr(plugin, "cpu_offload", None), "offload_params", False) is True
    section = {"version": version, "activation_checkpointing": bool(getattr(plugin, "activation_checkpointing", False))}
    return {"fsdp": f"{word} auto_wrap{' offload' if offloads else ''}", "fsdp_config": section}


def _named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()


def _weights(
    model: Any,
    base: Any,
    named: list[tuple[str, Any]],
    found: dict[str, Any],
    settings: dict[str, object],
    above: list[str],
) -> None:
    """Which weights train and in which dtype: adapters, a quantized base, frozen parts."""
    adapters = getattr(model, "peft_config", None)
    trains = [(name, each) for name, each in named if each.requires_grad]
    frozen = [(name, each) for name, each in named if not each.requires_grad]
    if not trains:
        raise UnreadJobError("no parameter of the model trains")
    if adapters:
        _adapters(model, adapters, found)
        dtype = _dtype(each for name, each in trains if "lora_" in name)
        if dtype:
            settings["training.lora.dtype"] = PLAN_DTYPES[dtype]
        _quantized(base, found)
        found["dtype"] = _dtype(each for _, each in frozen) or "bfloat16"
        return
    found["dtype"] = _dtype(each for _, each in named) or "float32"
    if frozen:
        parts = _frozen_parts(base, named)
        if parts is None:
            above.append("some parameters of a layer are frozen, and the plan trains them all")
        elif parts:
            settings["training.freeze"] = parts


def _adapters(model: Any, adapters: Mapping[str, Any], found: dict[str, Any]) -> None:
    """PEFT's ``LoraConfig`` in the keys of TRL's ``ModelConfig``.

    Raises:
        UnreadJobError: adapters of another kind, or several.
    """
    if len(adapters) > 1:
        raise UnreadJobError(f"the model has {len(adapters)} adapters")
    config = next(iter(adapters.values()))
    if type(config).__name__ != "LoraConfig":
        raise UnreadJobError(f"adapters of {type(config).__name__} have no memory model here")
    targets = config.target_modules
    found |= {
        "use_peft": True,
        "lora_r": config.r,
        "lora_target_modules": sorted(targets) if isinstance(targets, (set, list, tuple)) else targets,
        "lora_dropout": float(config.lora_dropout),
    }
    saved = list(config.modules_to_save or ())
    parameters = list(getattr(config, "target_parameters", None) or ())
    more = {"lora_modules_to_save": saved, "lora_target_parameters": parameters}
    found |= {key: value for key, value in more.items() if value}
    if getattr(config, "use_dora", False):
        found["use_dora"] = True
    if getattr(config, "init_lora_weights", True) is not True:
        found["init_lora_weights"] = config.init_lora_weights
    if getattr(config, "rank_pattern", None):
        raise UnreadJobError("adapters of different ranks (`rank_pattern`) have no memory model here")


def _quantized(base: Any, found: dict[str, Any]) -> None:
    """``BitsAndBytesConfig`` of a frozen base in TRL's keys.

    Raises:
        UnreadJobError: another quantization.
    """
    config = getattr(base.config, "quantization_config", None)
    if config is None:
        return
    stated = config if isinstance(config, Mapping) else config.to_dict()
    if stated.get("load_in_4bit") and stated.get("bnb_4bit_quant_type", "nf4") in ("nf4", "fp4"):
        found["load_in_4bit"] = True
        found["use_bnb_nested_quant"] = bool(stated.get("bnb_4bit_use_double_quant"))
        found["bnb_4bit_compute_dtype"] = str(stated.get("bnb_4bit_compute_dtype", "float32")).removeprefix("torch.")
    elif stated.get("load_in_8bit"):
        found["load_in_8bit"] = True
    else:
        raise UnreadJobError(f"weights quantized by {stated.get('quant_method', 'that method')} are not read here")


def _dtype(parameters: Iterable[Any]) -> str:
    """The floating-point dtype of most elements; empty where none is known."""
    count: dict[str, int] = {}
    for each in parameters:
        name = DTYPES.get(str(each.dtype), "")
        if name:
            count[name] = count.get(name, 0) + numel(each)
    return max(count, key=lambda name: count[name]) if count else ""


def _frozen_parts(base: Any, named: list[tuple[str, Any]]) -> list[str] | None:
    """The words of ``training.freeze``; None where a part is frozen by halves."""
    embed, head = (
        getattr(getattr(base, name, lambda: None)(), "weight", None)
        for name in ("get_input_embeddings", "get_output_embeddings")
    )
    trains: dict[str, set[bool]] = {}
    for name, each in named:
        layer = LAYER.search(name)
        part = layer[1] if layer else "embed" if each is embed else "head" if each is head else "norm"
        trains.setdefault(part, set()).add(bool(each.requires_grad))
    if any(len(each) > 1 for each in trains.values()):
        return None
    frozen = [part for part, each in trains.items() if each == {False}]
    layers = sorted(int(part) for part in frozen if part.isdigit())
    runs: list[list[int]] = []
    for each in layers:
        if runs and runs[-1][1] == each:
            runs[-1][1] = each + 1
        else:
            runs.append([each, each + 1])
    return [*(part for part in frozen if not part.isdigit()), *(f"layers:{first}-{last}" for first, last in runs)]


def _head(base: Any, config: Any, settings: dict[str, object]) -> None:
    """What the model ends in, by the name of its class.

    Raises:
        UnreadJobError: a class that ends in neither tokens nor labels.
    """
    name = type(base).__name__
    kind = next((word for end, word in HEADS.items() if name.endswith(end)), "")
    if kind:
        settings["training.head.kind"] = kind
        settings["training.head.labels"] = int(getattr(config, "num_labels", 2))
    elif not name.endswith(LANGUAGE):
        raise UnreadJobError(f"what {name} ends in has no memory model here")


def _recompute(base: Any, found: dict[str, Any]) -> None:
    """Recompute that the model itself has turned on, whatever the arguments say."""
    if any(getattr(each, "gradient_checkpointing", False) is True for each in base.modules()):
        renamed = "activation_checkpointing"  # what transformers 5.23 calls it
        found[renamed if renamed in found else "gradient_checkpointing"] = True
    section = found.get("fsdp_config")
    if isinstance(section, Mapping) and section.get("activation_checkpointing") is True:
        for key in ("activation_checkpointing", "gradient_checkpointing"):  # off, because FSDP does it
            if found.get(key) is False:
                del found[key]
    written = getattr(base.config, "_attn_implementation", None)
    if isinstance(written, str) and written:
        found["attn_implementation"] = written


def _optimizer(optimizer: Any, found: dict[str, Any], notes: list[str]) -> None:
    """The optimizer's own class, where it is known; else what the arguments say, and a note."""
    inner = getattr(optimizer, "optimizer", optimizer)
    package = type(inner).__module__.partition(".")[0]
    if inner is None or package in ("deepspeed", "accelerate"):
        return
    name = OPTIMIZERS.get((package, type(inner).__name__))
    if name is None:
        notes.append(f"the optimizer {type(inner).__name__} is not known: estimated as {found.get('optim', 'AdamW')}")
        return
    defaults = getattr(inner, "defaults", {})
    if name == "adamw_torch":
        name = "adamw_torch_fused" if defaults.get("fused") else name
        name = "adamw_hf" if defaults.get("foreach") is False and not defaults.get("fused") else name
    found["optim"] = name


def _longest(rows: Any) -> tuple[int, str] | None:
    """The longest of the first rows of a data set, in tokens, and the words for it; None where rows have no ids."""
    data = getattr(rows, "dataset", rows)
    if data is None or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        return None
    until, longest, seen = time.monotonic() + MOST_S, 0, 0
    for number in range(min(len(data), MOST_ROWS)):
        row = data[number]
        ids = row.get("input_ids") if isinstance(row, Mapping) else None
        if ids is None or not hasattr(ids, "__len__"):
            return None
        longest, seen = max(longest, len(ids)), seen + 1
        if time.monotonic() > until:
            break
    if not longest:
        return None
    return (
        longest,
        f"rows are taken to have {longest:,} tokens, the most of {seen:,} of {len(data):,}: sequence_length=",
    )


def _release(package: str) -> str:
    """Major and minor number of a package that is loaded; empty for one that is not."""
    found = re.match(r"\d{1,4}\.\d{1,4}", str(getattr(sys.modules.get(package), "__version__", "")))
    return found[0] if found else ""


def _plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON has it; an object of another kind becomes its text."""
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth < 12 and isinstance(value, Mapping):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if depth < 12 and isinstance(value, (list, tuple)):
        return [_plain(each, depth + 1) for each in value]
    if depth < 12 and isinstance(value, (set, frozenset)):
        return sorted((_plain(each, depth + 1) for each in value), key=str)
    if depth < 12 and hasattr(value, "to_dict"):
        return _plain(value.to_dict(), depth + 1)
    return str(value).removeprefix("torch.")
