"""Keys under the names that other tools give them: exactly the same setting, so that there is one right correction.

What only resembles a key of the plan is in ``synonyms`` and is suggested, never written. A key of the plan that gets
another name in a later version is to be listed here with the version as its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.record import Record

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
    Renamed("inference", "max_model_len", "context_length", origin=VLLM),
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
    """The plan's value for a value as it is written; the same text where both agree, None if there is no equal one."""
    if not entry.values:
        return text
    return entry.values.get(text.strip("'\"").lower())
