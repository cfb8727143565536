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
    """Where it is looked for, dotted: the section that has the plan's key."""
    old: str
    new: str
    origin: str
    values: Mapping[str, str] = MappingProxyType({})
    """The other tool's values and the plan's, as they are written; empty if both write the same."""


RENAMED: tuple[Renamed, ...] = (
    Renamed("hardware", "nproc_per_node", "gpus_per_node", TORCHRUN),
    Renamed("hardware", "nnodes", "nodes", TORCHRUN),
    Renamed("hardware", "num_machines", "nodes", ACCELERATE),
    Renamed("parallelism", "tensor_model_parallel_size", "tensor", MEGATRON),
    Renamed("parallelism", "tensor_parallel_degree", "tensor", TORCHTITAN),
    Renamed("parallelism", "tensor_parallel_size", "tensor", VLLM),
    Renamed("parallelism", "tp", "tensor", LITERATURE),
    Renamed("parallelism", "sequence_parallel", "sequence", MEGATRON, SWITCH),
    Renamed("parallelism", "context_parallel_size", "context", MEGATRON),
    Renamed("parallelism", "context_parallel_degree", "context", TORCHTITAN),
    Renamed("parallelism", "cp", "context", LITERATURE),
    Renamed("parallelism", "pipeline_model_parallel_size", "pipeline", MEGATRON),
    Renamed("parallelism", "pipeline_parallel_degree", "pipeline", TORCHTITAN),
    Renamed("parallelism", "pipeline_parallel_size", "pipeline", VLLM),
    Renamed("parallelism", "pp", "pipeline", LITERATURE),
    Renamed(
        "parallelism",
        "pipeline_parallel_schedule",
        "pipeline_schedule",
        TORCHTITAN,
        {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved1f1b": "interleaved-1f1b"},
    ),
    Renamed("parallelism", "num_virtual_stages_per_pipeline_rank", "virtual_stages", MEGATRON),
    Renamed("parallelism", "virtual_pipeline_model_parallel_size", "virtual_stages", MEGATRON),
    Renamed("parallelism", "expert_model_parallel_size", "expert", MEGATRON),
    Renamed("parallelism", "expert_parallel_degree", "expert", TORCHTITAN),
    Renamed("parallelism", "ep", "expert", LITERATURE),
    Renamed("parallelism", "expert_tensor_parallel_size", "expert_tensor", MEGATRON),
    Renamed("parallelism", "expert_tensor_parallel_degree", "expert_tensor", TORCHTITAN),
    Renamed("training", "per_device_train_batch_size", "micro_batch_size", TRANSFORMERS),
    Renamed("training", "train_micro_batch_size_per_gpu", "micro_batch_size", DEEPSPEED),
    Renamed("training", "local_batch_size", "micro_batch_size", TORCHTITAN),
    Renamed("training", "train_batch_size", "global_batch_size", DEEPSPEED),
    Renamed("training", "max_seq_length", "sequence_length", TRL),
    Renamed("training", "max_length", "sequence_length", TRL),
    Renamed("training", "seq_length", "sequence_length", MEGATRON),
    Renamed("training", "seq_len", "sequence_length", TORCHTITAN),
    Renamed("training", "sequence_len", "sequence_length", AXOLOTL),
    Renamed("training", "cutoff_len", "sequence_length", FACTORY),
    Renamed(
        "training",
        "gradient_checkpointing",
        "activation_checkpointing",
        TRANSFORMERS,
        {"true": "full", "false": "none"},
    ),
    Renamed(
        "training",
        "recompute_granularity",
        "activation_checkpointing",
        MEGATRON,
        {"full": "full", "selective": "selective"},
    ),
    Renamed(
        "training",
        "attn_implementation",
        "attention",
        "transformers",
        {
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
        TRANSFORMERS,
        {
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
    Renamed("training", "bf16", "precision", TRANSFORMERS, {"true": "bf16-mixed"}),
    Renamed("training", "fp16", "precision", TRANSFORMERS, {"true": "fp16-mixed"}),
    Renamed(
        "training",
        "mixed_precision",
        "precision",
        ACCELERATE,
        {"no": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8-mixed"},
    ),
    Renamed("training", "torch_compile", "compile", TRANSFORMERS, SWITCH),
    Renamed("training", "finetuning_type", "method", FACTORY, {"full": "full", "lora": "lora"}),
    Renamed("training", "adapter", "method", AXOLOTL, {"lora": "lora", "qlora": "qlora"}),
    Renamed("training.lora", "r", "rank", "PEFT"),
    Renamed("training.lora", "lora_r", "rank", AXOLOTL),
    Renamed("training.lora", "lora_rank", "rank", FACTORY),
    Renamed("training.lora", "lora_target_modules", "target_modules", AXOLOTL),
    Renamed("training.lora", "lora_target", "target_modules", FACTORY),
    Renamed("inference", "max_model_len", "context_length", VLLM),
    Renamed("inference", "kv_cache_dtype", "kv_cache", VLLM, {"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8"}),
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
