"""DeepSpeed's keys, and the plan keys for the same things. Read at DeepSpeed 0.19.8: ``deepspeed/runtime/config.py``,
``constants.py``, ``zero/config.py``, ``zero/offload_config.py``, ``precision_config.py``,
``activation_checkpointing/config.py``.

Keys with ``auto`` are filled by transformers' ``integrations/deepspeed.py`` from its TrainingArguments.
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import any_key
from memcheck.configs.types import KeyRow

VERSION = "DeepSpeed 0.19.8"
TITLE = "DeepSpeed"
ZERO = "zero_optimization"

DTYPES: dict[str, object] = {
    "fp32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}
AUTO: dict[str, object] = {"auto": "auto"}
PLACES: dict[str, object] = {"none": "none", "cpu": "cpu", "nvme": "nvme"}

STAGE = KeyRow(f"{ZERO}.stage", "parallelism.zero_stage", default=0)
OFFLOAD_OPTIMIZER = KeyRow(
    path=f"{ZERO}.offload_optimizer.device", key="training.optimizer.offload", kind="word", words=PLACES
)
OFFLOAD_PARAMETERS = KeyRow(
    path=f"{ZERO}.offload_param.device", key="training.offload.parameters", kind="word", words=PLACES
)

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

GATHER = KeyRow(
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    "training.options.stage3_gather_16bit_weights_on_model_save",
    "flag",
    aliases=(f"{ZERO}.gather_16bit_weights_on_model_save", f"{ZERO}.stage3_gather_fp16_weights_on_model_save"),
)


def _option(name: str, kind: str, words: dict[str, object] | None = None) -> KeyRow:
    return KeyRow(
        path=f"{ZERO}.{name}",
        key=f"training.options.{name}",
        kind=kind,
        words=words or {},
        aliases=_ALIASES.get(name, ()),
    )


ROWS = (
    STAGE,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMETERS,
    *(_option(name, "whole", AUTO) for name in _ZERO_AUTO),
    *(_option(name, "whole") for name in _ZERO_WHOLE),
    *(_option(name, "flag") for name in _ZERO_FLAGS),
    GATHER,
    KeyRow("tensor_parallel.autotp_size", "parallelism.tensor"),
    KeyRow("sequence_parallel_size", "parallelism.context"),
    KeyRow(path="communication_data_type", key="training.options.communication_data_type", kind="word", words=DTYPES),
    KeyRow(path="data_types.grad_accum_dtype", key="training.options.grad_accum_dtype", kind="word", words=DTYPES),
    KeyRow(f"{ZERO}.offload_optimizer.pin_memory", "training.options.pin_memory", "flag"),
    KeyRow(f"{ZERO}.offload_optimizer.buffer_count", "training.options.buffer_count"),
    KeyRow(f"{ZERO}.offload_optimizer.ratio", "training.options.ratio", "number"),
    KeyRow(f"{ZERO}.offload_param.buffer_size", "training.options.buffer_size"),
    KeyRow("activation_checkpointing.partition_activations", "training.options.partition_activations", "flag"),
    KeyRow("activation_checkpointing.cpu_checkpointing", "training.options.cpu_checkpointing", "flag"),
    KeyRow(
        "activation_checkpointing.contiguous_memory_optimization",
        "training.options.contiguous_memory_optimization",
        "flag",
    ),
    KeyRow("activation_checkpointing.number_checkpoints", "training.options.number_checkpoints"),
    KeyRow("bf16.bf16_master_weights_and_grads", "training.options.bf16_master_weights_and_grads", "flag"),
    KeyRow("bf16.bf16_optimizer_states", "training.options.bf16_optimizer_states", "flag"),
)

EVIDENCE = (
    ZERO,
    f"{ZERO}.",
    "train_micro_batch_size_per_gpu",
    "fp16.enabled",
    "bf16.enabled",
    "bfloat16.enabled",
    "tensor_parallel.autotp_size",
)
"""Keys that only DeepSpeed's configs have."""

REMOVED = ("training.options.mics_shard_size",)
"""Read, because older releases have it; not written: the engine refuses it now."""

MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
TOTAL = "train_batch_size"
CLIP = "gradient_clipping"
BF16 = ("bf16.enabled", "bfloat16.enabled")
FP16 = "fp16.enabled"
OPTIMIZER = "optimizer.type"
ELASTIC = "elasticity.enabled"
ELASTIC_SIZES = "elasticity.micro_batch_sizes"
MOMENTUM = "optimizer.params.momentum"
BACKEND = "optimizer.params.comm_backend_name"
COMPRESSING = ("onebit-adam", "zero-one-adam", "onebit-lamb")
TORCH_ADAM = "optimizer.params.torch_adam"
OLD_OFFLOAD = {f"{ZERO}.cpu_offload": OFFLOAD_OPTIMIZER.key, f"{ZERO}.cpu_offload_param": OFFLOAD_PARAMETERS.key}

OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adamw",
    "fusedadam": "adam",
    "deepspeedcpuadam": "adamw",
    "lion": "lion",
    "muon": "muon",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "lamb": "adam",
    "onebitadam": "onebit-adam",
    "zerooneadam": "zero-one-adam",
    "onebitlamb": "onebit-lamb",
}
"""``optimizer.type`` in lower case. Adam is AdamW by default (``adam_w_mode``); both keep the same states."""
TYPES = {
    "adamw": "AdamW", "adam": "Adam", "lion": "Lion", "muon": "Muon", "sgd": "SGD", "sgd-momentum": "SGD",
    "onebit-adam": "OneBitAdam", "zero-one-adam": "ZeroOneAdam", "onebit-lamb": "OneBitLamb",
}  # fmt: skip
"""The types that are written. ``SGD`` is torch's: the engine looks up other names in ``torch.optim``."""

HARMLESS = (
    "steps_per_print",
    "prescale_gradients",
    "gradient_predivide_factor",
    "gradient_allreduce_op",
    "disable_allgather",
    "dump_state",
    "disable_python_gc",
    "wall_clock_breakdown",
    "memory_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "seq_parallel_communication_data_type",
    "dataloader_drop_last",
    "log_level",
    "vocabulary_size",
    "optimizer.legacy_fusion",
    "managed_gradient_accumulation",
    f"{ZERO}.compute_grad_norm",
    f"{ZERO}.load_from_fp32_weights",
    f"{ZERO}.elastic_checkpoint",
    f"{ZERO}.ignore_unused_parameters",
    f"{ZERO}.legacy_stage1",
    f"{ZERO}.pipeline_loading_checkpoint",
    f"{ZERO}.override_module_apply",
    f"{ZERO}.log_trace_cache_warnings",
    f"{ZERO}.enable_sanity_checks",
    f"{ZERO}.cpu_offload_use_pin_memory",
    f"{ZERO}.offload_param.pin_memory",
    f"{ZERO}.offload_optimizer.nvme_path",
    f"{ZERO}.offload_param.nvme_path",
    f"{ZERO}.offload_optimizer.pipeline_read",
    f"{ZERO}.offload_optimizer.pipeline_write",
    f"{ZERO}.offload_optimizer.fast_init",
    f"{ZERO}.offload_optimizer.cpuadam_cores_perc",
    f"{ZERO}.round_robin_gradients",
    "bf16.immediate_grad_update",
    "bf16.check_grad_overflow",
    *(
        f"{section}.{name}"
        for section in ("bf16", "fp16")
        for name in (
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "consecutive_hysteresis",
            "min_loss_scale",
        )
    ),
    *(
        f"optimizer.params.{name}"
        for name in (
            *("lr", "betas", "eps", "weight_decay", "bias_correction", "adam_w_mode", "max_grad_norm", "nesterov"),
            *("dampening", "muon_lr", "adam_lr", "ns_method", "fp32_optimizer_states", "cuda_aware"),
            *("freeze_step", "max_coeff", "min_coeff", "coeff_beta", "factor_max", "factor_min", "factor_threshold"),
            *("var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper"),
        )
    ),
    *(
        f"elasticity.{name}"
        for name in (
            *("max_train_batch_size", "min_gpus", "max_gpus", "min_time", "version", "prefer_larger_batch"),
            *("ignore_non_elastic_batch_info", "num_gpus_per_node", "micro_batch_sizes"),
        )
    ),
    "tensor_parallel.preset_model",
    "activation_checkpointing.profile",
    "activation_checkpointing.synchronize_checkpoint_boundary",
)
"""Keys that move no memory of a training step: logs, checkpoints to disk, host buffers, the arithmetic of averages."""
HARMLESS_SECTIONS = (
    "scheduler.",
    "tensorboard.",
    "wandb.",
    "comet.",
    "csv_monitor.",
    "comms_logger.",
    "flops_profiler.",
    "checkpoint.",
    "aio.",
    "nebula.",
    "tensor_parallel.partition_config.",
    "compile.",
)
"""Sections of which no key moves memory, or none without one that is a note by itself (``compile.deepcompile``)."""

UNMODELLED: dict[str, tuple[object, str]] = {
    "zero_optimization.zenflow": (None, "ZenFlow's extra copies are not modelled"),
    "zero_optimization.leaf_module": (None, "modules whose parameters are gathered all at once are not modelled"),
    "sparse_gradients": (False, "gradients of embeddings as rows, gathered from every rank, are not modelled"),
    "tensor_parallel.tp_overlap_comm": (False, "the buffers of overlapped tensor parallelism are not modelled"),
    "zero_optimization.offload_optimizer.super_offload": (False, "SuperOffload's buffers are not modelled"),
    "zero_optimization.offload_param.buffer_count": (5, "another number of buffers for parameters is not modelled"),
    "zero_optimization.offload_param.max_in_cpu": (1_000_000_000, "another share in host memory is not modelled"),
    "zero_optimization.parameter_alignment": (False, "the padding of aligned parameters is not modelled"),
    "zero_optimization.stage3_use_all_reduce_for_fetch_params": (False, "fetching by all-reduce is not modelled"),
    "torch_autocast": (None, "casts of torch.autocast inside the engine are not modelled"),
    "amp": (None, "apex's mixed precision is not modelled"),
    "fp16.fp16_master_weights_and_grads": (False, "fp16 master weights are not modelled"),
    "fp16.auto_cast": (False, "casts of the inputs are not modelled"),
    "autotuning": (None, "the tuner's own stages and batches are not modelled"),
    "compression_training": (None, "compression keeps more copies of the weights, which are not modelled"),
    "quantize_training": (None, "quantized training is not modelled"),
    "eigenvalue": (None, "the eigenvalue computation's second backward is not modelled"),
    "progressive_layer_drop": (None, "dropped layers are not modelled: the peak is that of all layers"),
    "data_efficiency": (None, "routed or shortened sequences are not modelled: the peak is that of whole ones"),
    "curriculum_learning": (None, "shortened sequences are not modelled: the peak is that of whole ones"),
    "sparse_attention": (None, "sparse attention kernels are not modelled"),
    "hybrid_engine": (None, "the inference copy of the hybrid engine is not modelled"),
    "expert_parallel": (None, "AutoEP is not modelled"),
    "pipeline": (None, "the pipeline engine needs models rewritten for it, which are not modelled"),
    "compile.enabled": (False, "the model that the engine compiles is not modelled"),
    "compile.deepcompile": (False, "DeepCompile's own schedule of gathers is not modelled"),
    "sequence_parallel": (None, "AutoSP is not modelled"),
    "data_types.param_dtype": (None, "a parameter dtype of its own is not modelled"),
}
"""Keys that move memory and have no place in a plan."""

_OWN = any_key(*HARMLESS, *HARMLESS_SECTIONS, "amp.", CLIP, OPTIMIZER)


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is DeepSpeed's; empty where none does.

    It is a key that only DeepSpeed has, or the total batch. Other frameworks also state a total batch, so that it
    counts only as the one key of a config, or with other keys of DeepSpeed.
    """
    found = any_key(*EVIDENCE)(config)
    return found or (TOTAL if TOTAL in config.values and (len(config.values) == 1 or _OWN(config)) else "")
