"""DeepSpeed's keys, and the plan keys for the same things. Read at DeepSpeed 0.19.8: ``deepspeed/runtime/config.py``,
``constants.py``, ``zero/config.py``, ``zero/offload_config.py``, ``precision_config.py``,
``activation_checkpointing/config.py``.

Keys with ``auto`` are filled by transformers' ``integrations/deepspeed.py`` from its TrainingArguments.
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import any_key
from memcheck.configs.key_table import key_table
from memcheck.configs.types import KeyRow

KEYS = key_table("deepspeed")

ZERO = "zero_optimization"


_ZERO_WHOLE = (
    "stage3_model_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_module_granularity_threshold",
    "sub_group_size",
    "zero_hpz_partition_size",
    "mics_shard_size",
)
_ZERO_AUTO = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)
_ZERO_FLAGS = (
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "allgather_partitions",
    "round_robin_gradients",
    "use_multi_rank_bucket_allreduce",
    "stage3_allgather_sequential",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
    "memory_efficient_linear",
)
_ALIASES = {
    name: (f"{ZERO}.{name.removeprefix('stage3_')}",)
    for name in (*_ZERO_WHOLE, *_ZERO_AUTO, *_ZERO_FLAGS)
    if name.startswith("stage3_")
}
"""``populate_by_name``: DeepSpeed takes these with and without their prefix."""


def _option(name: str, kind: str, words: dict[str, object] | None = None) -> KeyRow:
    return KeyRow(
        path=f"{ZERO}.{name}",
        key=f"training.options.{name}",
        kind=kind,
        words=words or {},
        aliases=_ALIASES.get(name, ()),
    )


REMOVED = ("training.options.mics_shard_size",)
"""Read, because older releases have it; not written: the engine refuses it now."""

MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
TOTAL = "train_batch_size"
CLIP = "gradient_clipping"
FP16 = "fp16.enabled"
OPTIMIZER = "optimizer.type"
ELASTIC = "elasticity.enabled"
ELASTIC_SIZES = "elasticity.micro_batch_sizes"
MOMENTUM = "optimizer.params.momentum"
TORCH_ADAM = "optimizer.params.torch_adam"


_OWN = any_key(*KEYS.irrelevant, *KEYS.irrelevant, "amp.", CLIP, OPTIMIZER)


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is DeepSpeed's; empty where none does.

    It is a key that only DeepSpeed has, or the total batch. Other frameworks also state a total batch, so that it
    counts only as the one key of a config, or with other keys of DeepSpeed.
    """
    found = any_key(*KEYS.evidence[0])(config)
    return found or (TOTAL if TOTAL in config.values and (len(config.values) == 1 or _OWN(config)) else "")
