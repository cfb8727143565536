"""Keys and values under the names that other tools give them: the right one, or that it changes no byte of a plan."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from memcheck.edge.json_text import read_own_json
from memcheck.edge.lookalikes import skeleton
from memcheck.plan.schema import conforms, flow, listed, load_schema, schema_of, shorten
from memcheck.record import Record

KEYS = {
    "tp": "parallelism.tensor",
    "tensor_parallel": "parallelism.tensor",
    "tensor_parallel_size": "parallelism.tensor",
    "tensor_parallel_degree": "parallelism.tensor",
    "tensor_model_parallel_size": "parallelism.tensor",
    "sp": "parallelism.sequence",
    "sequence_parallel": "parallelism.sequence",
    "cp": "parallelism.context",
    "context_parallel": "parallelism.context",
    "context_parallel_size": "parallelism.context",
    "context_parallel_degree": "parallelism.context",
    "pp": "parallelism.pipeline",
    "pipeline_parallel": "parallelism.pipeline",
    "pipeline_parallel_size": "parallelism.pipeline",
    "pipeline_parallel_degree": "parallelism.pipeline",
    "pipeline_model_parallel_size": "parallelism.pipeline",
    "schedule": "parallelism.pipeline_schedule",
    "vpp": "parallelism.virtual_stages",
    "ep": "parallelism.expert",
    "expert_parallel": "parallelism.expert",
    "expert_model_parallel_size": "parallelism.expert",
    "etp": "parallelism.expert_tensor",
    "dp": "parallelism.data",
    "data_parallel": "parallelism.data",
    "zero": "parallelism.zero_stage",
    "fsdp": "parallelism.zero_stage",
    "hsdp": "parallelism.shard_group",
    "batch_size": "training.micro_batch_size",
    "per_device_train_batch_size": "training.micro_batch_size",
    "micro_batch": "training.micro_batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "local_batch_size": "training.micro_batch_size",
    "mbs": "training.micro_batch_size",
    "gbs": "training.global_batch_size",
    "train_batch_size": "training.global_batch_size",
    "seq_len": "training.sequence_length",
    "seq_length": "training.sequence_length",
    "sequence_len": "training.sequence_length",
    "max_seq_len": "training.sequence_length",
    "max_seq_length": "training.sequence_length",
    "max_length": "training.sequence_length",
    "cutoff_len": "training.sequence_length",
    "grad_accum": "training.gradient_accumulation_steps",
    "gradient_accumulation": "training.gradient_accumulation_steps",
    "gradient_checkpointing": "training.activation_checkpointing",
    "recompute": "training.activation_checkpointing",
    "recompute_granularity": "training.activation_checkpointing",
    "ac": "training.activation_checkpointing",
    "attn_implementation": "training.attention",
    "flash_attention": "training.attention",
    "optim": "training.optimizer",
    "dtype": "training.precision",
    "mixed_precision": "training.precision",
    "max_grad_norm": "training.clip_grad_norm",
    "torch_compile": "training.compile",
    "lora_r": "training.lora.rank",
    "r": "training.lora.rank",
    "lora_target_modules": "training.lora.target_modules",
    "targets": "training.lora.target_modules",
    "offload.optimizer": "training.optimizer.offload",
    "offload.params": "training.offload.parameters",
    "offload.param": "training.offload.parameters",
    "offload.weights": "training.offload.parameters",
    "offload.model": "training.offload.parameters",
    "offload.activations": "training.activation_checkpointing.offload",
    "max_context": "inference.context_length",
    "kv_cache_dtype": "inference.kv_cache",
    "gpus": "hardware.gpus_per_node",
    "num_gpus": "hardware.gpus_per_node",
    "nproc_per_node": "hardware.gpus_per_node",
    "nnodes": "hardware.nodes",
    "num_nodes": "hardware.nodes",
    "accelerator": "hardware.gpu",
    "memory_gb": "hardware.gpu.memory_gib",
    "version": "memcheck",
}
"""Keys of other tools in snake case, alone or with their section before them, to the dotted keys of a plan."""

ARCHITECTURE = "model.architecture."
"""Where a plan has the keys of a model's config.json."""
SHAPES = {
    **dict.fromkeys(
        ("layers", "num_layers", "n_layer", "n_layers", "nlayers", "depth", "num_hidden_layers", "hidden_layers"),
        "num_hidden_layers",
    ),
    **dict.fromkeys(
        ("heads", "num_heads", "n_head", "n_heads", "nheads", "attention_heads", "num_attention_heads"),
        "num_attention_heads",
    ),
    **dict.fromkeys(
        ("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_query_groups", "num_key_value_heads"),
        "num_key_value_heads",
    ),
    **dict.fromkeys(
        ("hidden", "hidden_size", "hidden_dim", "d_model", "dim", "n_embd", "embed_dim", "width"), "hidden_size"
    ),
    **dict.fromkeys(
        ("ffn", "ffn_dim", "ffn_hidden_size", "ffn_size", "d_ff", "mlp_dim", "intermediate_size", "n_inner"),
        "intermediate_size",
    ),
    **dict.fromkeys(("vocab", "vocab_size", "n_vocab", "vocabulary", "padded_vocab_size"), "vocab_size"),
    **dict.fromkeys(("max_position_embeddings", "max_positions", "n_positions", "n_ctx"), "max_position_embeddings"),
    "head_dim": "head_dim",
    "model_type": "model_type",
}
"""Sizes of a model in snake case, as they are called, to their names in the config.json of most models."""

FRAMEWORKS = {
    "unsloth": "Unsloth runs transformers' Trainer: write `huggingface`, and `trainer: unsloth`",
    "trl": "TRL's trainers are transformers' Trainer: write `huggingface`",
    "axolotl": "Axolotl runs transformers' Trainer: write `huggingface`",
    "llama-factory": "LLaMA-Factory runs transformers' Trainer: write `huggingface`",
    "ms-swift": "ms-swift runs transformers' Trainer, or Megatron: write `huggingface` or `megatron`",
    "swift": "ms-swift runs transformers' Trainer, or Megatron: write `huggingface` or `megatron`",
    "open-instruct": "a loop over transformers' classes, under Accelerate: write `huggingface`",
    "accelerate": "Accelerate launches other code: write `huggingface` for the Trainer, `pytorch` for your own loop",
    "fsdp": "FSDP is `parallelism.zero_stage: 3`; the framework is whose code runs: `huggingface`, `pytorch`, ...",
    "fsdp2": "FSDP is `parallelism.zero_stage: 3`; the framework is whose code runs: `huggingface`, `pytorch`, ...",
    "ddp": "DDP is `parallelism.zero_stage: 0`; the framework is whose code runs: `huggingface`, `pytorch`, ...",
    "verl": "verl's workers run transformers' classes under FSDP, or Megatron: write `pytorch` or `megatron`",
    "openrlhf": "OpenRLHF trains under DeepSpeed: write `deepspeed`",
    "nemo": "NeMo trains with Megatron-Core: write `megatron`; NeMo AutoModel with torch's FSDP2: `pytorch`",
    "lightning": "Lightning runs a loop over your model: write `pytorch`",
    "pytorch-lightning": "Lightning runs a loop over your model: write `pytorch`",
}
"""What people name as the framework, in kebab case, and what to write instead."""

VALUES = {
    "flash-attention": "flash",
    "flash-attention-2": "flash",
    "flash-attention-3": "flash",
    "flash-attn": "flash",
    "fa2": "flash",
    "fa3": "flash",
    "flex-attention": "flex",
    "scaled-dot-product-attention": "sdpa",
    "hf": "huggingface",
    "transformers": "huggingface",
    "trl": "huggingface",
    "axolotl": "huggingface",
    "llama-factory": "huggingface",
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "nemo": "megatron",
    "torch": "pytorch",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "nf4": "int4",
    "adamw-torch": "adamw",
    "adamw-torch-fused": "adamw",
    "adamw-bnb-8bit": "adamw-8bit",
    "adam8bit": "adamw-8bit",
    "adamw8bit": "adamw-8bit",
    "paged-adamw-8-bit": "paged-adamw-8bit",
    "liger": "fused-linear",
    "cut-cross-entropy": "fused-linear",
    "single": "for-loop",
    "interleaved": "interleaved-1f1b",
    "zbv": "dualpipe",
    "dualpipev": "dualpipe",
}
"""A foreign value, in kebab case, to the plan's."""


INDEX = os.path.join(os.path.dirname(__file__), "foreign.json")
INSTANCES = os.path.join(os.path.dirname(__file__), "instances.json")
KEY, SAID, NONE, LACKS = "key", "said", "none", "lacks"
"""A plan has a key for it | other keys say it | it changes no byte | memcheck has no model of it."""
SERVED = {
    "training.precision": "inference.weights",
    "training.precision.params": "inference.weights",
    "training.micro_batch_size": "inference.batch_size",
    "training.sequence_length": "inference.context_length",
}
"""Keys of training, and those of a plan of inference for the same thing."""
_MOST_WORDS = 6
DEEPEST = 8
"""Words of a dotted key that are looked at, from its end."""


class ForeignKey(Record):
    """A key of another tool, and the plan's key for the same thing, or why there is none."""

    tool: str
    kind: str
    text: str
    """The dotted key of the plan; a reason otherwise, which may be empty."""
    words: Mapping[str, str] = {}
    """The tool's values in small letters, and the plan's."""


def plain(key: str) -> str:
    """``micro-batch-size``, ``microBatchSize`` and ``Micro_Batch_Size`` are one key, in letters that look so, too."""
    return skeleton(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").replace(" ", "_"))


def answered(key: str, tokens: list[str], value: object, *, serving: bool = False) -> str:
    """Return the help for a key that stands below ``tokens``; empty where no tool that is known has it.

    ``serving``: the plan is one of inference.
    """
    found = _found(plain(key), [plain(token) for token in tokens])
    if not found:
        return ""
    keys = [each for each in found if each.kind == KEY]
    if keys:
        told = dict.fromkeys(_written(each, value, serving=serving) for each in keys)
        known = [each for each in told if re.match(r"it is written `[\w.]+: ", each)]
        return "; ".join(each for each in told if each in known or not _of_same_key(each, known))
    return "; ".join(dict.fromkeys(map(_left_out, found)))


def _of_same_key(help: str, known: list[str]) -> bool:
    """Say whether another answer says the value of the same key."""
    key = re.match(r"it is written `([\w.]+)`", help)
    return key is not None and any(each.startswith(f"it is written `{key[1]}: ") for each in known)


def meanings(key: str) -> list[ForeignKey]:
    """What tools mean by a key, wherever it stands."""
    return _found(plain(key), [])


def _found(key: str, tokens: list[str]) -> list[ForeignKey]:
    """By the whole path, by shorter and shorter ends of it."""
    path = [*tokens, *key.rsplit(".", DEEPEST)][-DEEPEST:]
    for start in range(len(path)):
        rows = _index().get(".".join(path[start:]))
        if rows:
            return [ForeignKey(*row) for row in rows]
    return []


@cache
def _index() -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = read_own_json(INDEX)
    return found


def _written(answer: ForeignKey, value: object, *, serving: bool) -> str:
    """Return the help for another tool's key that a plan has under its own name."""
    key, name = answer.text, answer.text.rpartition(".")[2]
    if key == f"{ARCHITECTURE}{name}":
        key = f"{ARCHITECTURE}{SHAPES.get(name, name)}"
    return served(key, value, answer.words) if serving else written(key, value, answer.words)


NO_WORDS: Mapping[str, str] = {}


def written(key: str, value: object, words: Mapping[str, str] = NO_WORDS) -> str:
    """Return the help that names a key of the plan, with the value where it is one that the plan takes."""
    said = f"it is written `{key}`"
    if value is None or isinstance(value, (dict, list)):
        return said
    if words:
        text = str(value).lower()
        meant = words.get(text, words.get(text.partition(" ")[0]))  # `full_shard auto_wrap`
        if meant is None:
            more = " only" if len(words) <= _MOST_WORDS else " and more"
            return f"{said}, which has a value for {listed(list(words)[:_MOST_WORDS], 'and')}{more}"
        return f"it is written `{key}: {meant}`"
    machine = instance(str(value)) or counted(str(value)) if key == "hardware.gpu" else None
    if machine is not None:
        return f"it is written `{key}: {machine[0]}`, with `hardware.gpus_per_node: {machine[1]}`"
    schema = schema_of(key, load_schema())
    if schema is None or not conforms(value, schema, load_schema()):
        return said
    return f"it is written `{key}: {shorten(flow(value))}`"


def served(key: str, value: object, words: Mapping[str, str] = NO_WORDS) -> str:
    """Return the help that names a key of a plan of inference, which has no key of `training`."""
    own = SERVED.get(key, key)
    if own.startswith("training."):
        return f"leave it out: it is `{own}` of a training plan, and this plan is of inference"
    if own != key and written(own, value) != written(own, None):
        return written(own, value)  # inference takes the value as it is
    return written(own, value, words)


def instance(name: str) -> tuple[str, int] | None:
    """Return the GPU and how many of it a cloud's machine of this type has; None for any other word."""
    found = _instances().get(name.strip().lower())
    return None if found is None else (found[0], found[1])


def counted(text: str) -> tuple[str, int] | None:
    """Return the name and the number of ``H100:8``, as schedulers write GPUs; None for any other word."""
    name, colon, number = text.strip().rpartition(":")
    whole = number.isdecimal() and number.isascii() and len(number) < 4
    return (name, int(number)) if colon and name and whole else None


@cache
def _instances() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = read_own_json(INSTANCES)
    return found


def _left_out(answer: ForeignKey) -> str:
    """Return the help for another tool's key that a plan does not need."""
    if answer.kind == NONE:
        reason = f"{answer.tool}: {answer.text}" if answer.text else f"a key of {answer.tool}"
        return f"leave it out: it changes no byte of a GPU ({reason})"
    if answer.kind == SAID:
        return f"leave it out: {answer.text}"
    return f"leave it out: memcheck does not model it, and the estimate is without it ({answer.tool}: {answer.text})"


TRANSFORMERS = "transformers"
ACCELERATE = "Accelerate"
TRL = "TRL"
DEEPSPEED = "DeepSpeed"
MEGATRON = "Megatron-LM"
TORCHTITAN = "torchtitan"
AXOLOTL = "Axolotl"
FACTORY = "LLaMA-Factory"
TORCHRUN = "torchrun"
VLLM = "vLLM"
LITERATURE = "the literature"

SWITCH = {"true": "true", "false": "false"}


class Renamed(Record):
    """One key of another tool."""

    section: str
    """The dotted section of the plan in which the other tool's key is looked for; it also has the plan's key."""
    old: str
    new: str
    origin: str
    values: Mapping[str, str] = MappingProxyType({})
    """Values of the other tool, and the plan's values for them, as they are written; empty if they are the same."""


RENAMED: tuple[Renamed, ...] = (
    Renamed("hardware", "nproc_per_node", "gpus_per_node", origin=TORCHRUN),
    Renamed("hardware", "nnodes", "nodes", origin=TORCHRUN),
    Renamed("hardware", "num_machines", "nodes", origin=ACCELERATE),
    Renamed("parallelism", "tensor_model_parallel_size", "tensor", origin=MEGATRON),
    Renamed("parallelism", "tensor_parallel_degree", "tensor", origin=TORCHTITAN),
    Renamed("parallelism", "tensor_parallel_size", "tensor", origin=VLLM),
    Renamed("parallelism", "tp", "tensor", origin=LITERATURE),
    Renamed("parallelism", "sequence_parallel", "sequence", origin=MEGATRON, values=SWITCH),
    Renamed("parallelism", "context_parallel_size", "context", origin=MEGATRON),
    Renamed("parallelism", "context_parallel_degree", "context", origin=TORCHTITAN),
    Renamed("parallelism", "cp", "context", origin=LITERATURE),
    Renamed("parallelism", "pipeline_model_parallel_size", "pipeline", origin=MEGATRON),
    Renamed("parallelism", "pipeline_parallel_degree", "pipeline", origin=TORCHTITAN),
    Renamed("parallelism", "pipeline_parallel_size", "pipeline", origin=VLLM),
    Renamed("parallelism", "pp", "pipeline", origin=LITERATURE),
    Renamed(
        "parallelism",
        "pipeline_parallel_schedule",
        "pipeline_schedule",
        origin=TORCHTITAN,
        values={"gpipe": "gpipe", "1f1b": "1f1b", "interleaved1f1b": "interleaved-1f1b"},
    ),
    Renamed("parallelism", "num_virtual_stages_per_pipeline_rank", "virtual_stages", origin=MEGATRON),
    Renamed("parallelism", "virtual_pipeline_model_parallel_size", "virtual_stages", origin=MEGATRON),
    Renamed("parallelism", "expert_model_parallel_size", "expert", origin=MEGATRON),
    Renamed("parallelism", "expert_parallel_degree", "expert", origin=TORCHTITAN),
    Renamed("parallelism", "ep", "expert", origin=LITERATURE),
    Renamed("parallelism", "expert_tensor_parallel_size", "expert_tensor", origin=MEGATRON),
    Renamed("parallelism", "expert_tensor_parallel_degree", "expert_tensor", origin=TORCHTITAN),
    Renamed("training", "per_device_train_batch_size", "micro_batch_size", origin=TRANSFORMERS),
    Renamed("training", "train_micro_batch_size_per_gpu", "micro_batch_size", origin=DEEPSPEED),
    Renamed("training", "local_batch_size", "micro_batch_size", origin=TORCHTITAN),
    Renamed("training", "train_batch_size", "global_batch_size", origin=DEEPSPEED),
    Renamed("training", "max_seq_length", "sequence_length", origin=TRL),
    Renamed("training", "max_length", "sequence_length", origin=TRL),
    Renamed("training", "seq_length", "sequence_length", origin=MEGATRON),
    Renamed("training", "seq_len", "sequence_length", origin=TORCHTITAN),
    Renamed("training", "sequence_len", "sequence_length", origin=AXOLOTL),
    Renamed("training", "cutoff_len", "sequence_length", origin=FACTORY),
    Renamed(
        "training",
        "gradient_checkpointing",
        "activation_checkpointing",
        origin=TRANSFORMERS,
        values={"true": "full", "false": "none"},
    ),
    Renamed(
        "training",
        "recompute_granularity",
        "activation_checkpointing",
        origin=MEGATRON,
        values={"full": "full", "selective": "selective"},
    ),
    Renamed(
        "training",
        "attn_implementation",
        "attention",
        origin="transformers",
        values={
            "eager": "eager",
            "sdpa": "sdpa",
            "flash_attention_2": "flash",
            "flash_attention_3": "flash",
            "flex_attention": "flex",
        },
    ),
    Renamed(
        "training",
        "optim",
        "optimizer",
        origin=TRANSFORMERS,
        values={
            "adamw_torch": "{name: adamw, implementation: foreach}",
            "adamw_torch_fused": "{name: adamw, implementation: fused}",
            "adamw_bnb_8bit": "adamw-8bit",
            "adamw_8bit": "adamw-8bit",
            "paged_adamw_8bit": "paged-adamw-8bit",
            "adafactor": "adafactor",
            "lion_8bit": "lion-8bit",
            "sgd": "sgd",
        },
    ),
    Renamed("training", "bf16", "precision", origin=TRANSFORMERS, values={"true": "bf16-mixed"}),
    Renamed("training", "fp16", "precision", origin=TRANSFORMERS, values={"true": "fp16-mixed"}),
    Renamed(
        "training",
        "mixed_precision",
        "precision",
        origin=ACCELERATE,
        values={"no": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8-mixed"},
    ),
    Renamed("training", "torch_compile", "compile", origin=TRANSFORMERS, values=SWITCH),
    Renamed("training", "finetuning_type", "method", origin=FACTORY, values={"full": "full", "lora": "lora"}),
    Renamed("training", "adapter", "method", origin=AXOLOTL, values={"lora": "lora", "qlora": "qlora"}),
    Renamed("training.lora", "r", "rank", origin="PEFT"),
    Renamed("training.lora", "lora_r", "rank", origin=AXOLOTL),
    Renamed("training.lora", "lora_rank", "rank", origin=FACTORY),
    Renamed("training.lora", "lora_target_modules", "target_modules", origin=AXOLOTL),
    Renamed("training.lora", "lora_target", "target_modules", origin=FACTORY),
    Renamed(
        "inference",
        "kv_cache_dtype",
        "kv_cache",
        origin=VLLM,
        values={"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8"},
    ),
)
"""In the order of the plan's sections; no two entries have the same section and old name."""

_BY_NAME = {(entry.section, entry.old): entry for entry in RENAMED}


def renamed(section: str, key: str) -> Renamed | None:
    """The entry of a key in a section; None when no tool that is known calls anything so."""
    return _BY_NAME.get((section, key))


def rewritten(entry: Renamed, text: str) -> str | None:
    """Return the plan's value for a value as it is written; the same text where both agree, None if there is no equal
    one.
    """
    if not entry.values:
        return text
    return entry.values.get(text.strip("'\"").lower())
