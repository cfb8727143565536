"""torchtitan's keys, and the plan keys. Read at torchtitan 0.2.2, ``torchtitan/config/job_config.py``: the last release
whose jobs are TOML files; later ones are Python functions.

The old names are those of 0.1 and of 2024 (``training.batch_size``, ``experimental.*``).
"""

from __future__ import annotations

from memcheck.configs.types import KeyRow

VERSION = "torchtitan 0.2.2"
TITLE = "torchtitan"

SCHEDULES: dict[str, object] = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "InterleavedZeroBubble": "zero-bubble",
    "ZBVZeroBubble": "dualpipe",  # both ends of the model are on the first rank, and as many micro-batches in flight
    "DualPipeV": "dualpipe",
}
DTYPES: dict[str, object] = {"bfloat16": "bf16", "float32": "fp32"}

ROWS = (
    KeyRow("training.seq_len", "training.sequence_length", default=2048),
    KeyRow("training.enable_cpu_offload", "training.options.enable_cpu_offload", "flag"),
    KeyRow(
        "parallelism.tensor_parallel_degree",
        "parallelism.tensor",
        default=1,
        aliases=("training.tensor_parallel_degree",),
    ),
    KeyRow(
        "parallelism.context_parallel_degree",
        "parallelism.context",
        default=1,
        aliases=("experimental.context_parallel_degree",),
    ),
    KeyRow(
        "parallelism.pipeline_parallel_degree",
        "parallelism.pipeline",
        default=1,
        aliases=("experimental.pipeline_parallel_degree",),
    ),
    KeyRow("parallelism.expert_parallel_degree", "parallelism.expert", default=1),
    KeyRow("parallelism.expert_tensor_parallel_degree", "parallelism.expert_tensor", default=1),
    KeyRow(
        path="optimizer.name",
        key="training.optimizer.name",
        kind="word",
        words={"AdamW": "adamw", "Adam": "adam"},
        default="adamw",
    ),
    KeyRow(
        path="optimizer.implementation",
        key="training.optimizer.implementation",
        kind="word",
        words={"fused": "fused", "foreach": "foreach", "for-loop": "for-loop"},
        default="fused",
    ),
    KeyRow("parallelism.disable_loss_parallel", "training.options.disable_loss_parallel", "flag"),
    KeyRow(
        "parallelism.enable_async_tensor_parallel",
        "training.options.enable_async_tensor_parallel",
        "flag",
        aliases=("experimental.enable_async_tensor_parallel",),
    ),
    KeyRow(
        "parallelism.context_parallel_rotate_method",
        "training.options.context_parallel_rotate_method",
        "text",
        aliases=("experimental.context_parallel_rotate_method",),
    ),
    KeyRow(
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "training.options.pipeline_parallel_first_stage_less_layers",
    ),
    KeyRow(
        "parallelism.pipeline_parallel_last_stage_less_layers",
        "training.options.pipeline_parallel_last_stage_less_layers",
    ),
    KeyRow(
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
        "training.options.per_op_sac_force_recompute_mm_shapes_by_fqns",
        "list",
    ),
    KeyRow(
        "quantize.linear.float8.enable_fsdp_float8_all_gather",
        "training.options.enable_fsdp_float8_all_gather",
        "flag",
        aliases=("float8.enable_fsdp_float8_all_gather", "float8.enable_fsdp_fp8_all_gather"),
    ),
)

EARLY = KeyRow("optimizer.early_step_in_backward", "training.options.early_step_in_backward", "flag")
SCHEDULE = KeyRow(
    path="parallelism.pipeline_parallel_schedule",
    key="parallelism.pipeline_schedule",
    kind="word",
    words=SCHEDULES,
    aliases=("experimental.pipeline_parallel_schedule",),
)
"""Read and written only with a pipeline: the presets name a schedule without one."""

EVIDENCE = (
    "model.flavor",
    "training.seq_len",
    "training.local_batch_size",
    "training.batch_size",
    "training.data_parallel_degree",
    "training.tensor_parallel_degree",
    "activation_checkpoint.",
    "parallelism.data_parallel_shard_degree",
    "parallelism.tensor_parallel_degree",
    "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_degree",
)
"""Keys that only torchtitan's jobs have."""

LOCAL_BATCH = ("training.local_batch_size", "training.batch_size")
REPLICATE = ("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree")
SHARD = (
    "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree",
    "training.data_parallel_degree",
)
GLOBAL_BATCH = "training.global_batch_size"
LAYERS_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
FEWER_FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
FEWER_LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
LOOPED = ("interleaved-1f1b", "zero-bubble", "dualpipe")
"""Two stages on each rank unless the layers per stage say otherwise (``distributed/pipeline_parallel.py``)."""
PIPELINE_BATCH = "parallelism.pipeline_parallel_microbatch_size"
PARTS = ("parallelism.pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches")
"""How many micro-batches a local batch is cut into: what releases before April 2025 had in place of their size."""
OLD_PIPELINE = "experimental.pipeline_parallel_degree"
"""Where the degree stood then; such releases cut a local batch into as many parts as there are ranks, and gave the
first and the last stage no fewer layers (parallelisms/pipelining_utils.py at 9dec370)."""
RESHARD = "parallelism.fsdp_reshard_after_forward"
CHECKPOINT_MODE = "activation_checkpoint.mode"
CHECKPOINT_OPTION = "activation_checkpoint.selective_ac_option"
SAVES = ("checkpoint.enable", "checkpoint.enable_checkpoint")
EXPORTED = "checkpoint.export_dtype"
ASYNCHRONOUS = KeyRow(
    path="checkpoint.async_mode",
    key="training.checkpoint.asynchronous",
    kind="word",
    words={"disabled": False, "async": True, "async_with_pinned_mem": True},
)
VALIDATES = ("validation.enable", "validation.enabled")
VALIDATION = (("validation.local_batch_size", 8), ("validation.seq_len", 2048))
REDUCED_DTYPE = "training.mixed_precision_reduce"
STORED_DTYPE = "training.dtype"
COMPUTE_DTYPE = "training.mixed_precision_param"
COMPILE = ("compile.enable", "training.compile")
COMPILED_PARTS = "compile.components"
OLD_DEGREES = (
    "training.tensor_parallel_degree",
    "training.data_parallel_shard_degree",
    "training.data_parallel_degree",
)
"""Where degrees stood to March 2025, when ``training.compile`` left the loss as it was (``components/loss.py``)."""
CONVERTERS = "model.converters"
FLOAT8 = ("float8", "quantize.linear.float8")
"""Converters of linear layers; whichever recipe scales them, autograd keeps their inputs in 16 bits, and which layers
they leave alone matters as little (torchao ``float8_linear.py``, matmul_with_hp_or_float8_args).
"""
OLD_FLOAT8 = "float8.enable_float8_linear"
DEFAULT_LOCAL_BATCH = 8

HARMLESS = (
    "training.dataset",
    "training.dataset_path",
    "training.steps",
    "training.max_norm",
    "training.warmup_steps",
    "training.gc_freq",
    "training.gc_debug",
    "training.seed",
    "optimizer.lr",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.eps",
    "optimizer.weight_decay",
    "model.hf_assets_path",
    "model.tokenizer_path",
    "model.print_after_conversion",
    "model.norm_type",
    "parallelism.context_parallel_load_balancer",
    "activation_checkpoint.early_stop",
    "activation_checkpoint.preserve_rng_state",
    "activation_checkpoint.determinism_check",
    "activation_checkpoint.debug",
    "activation_checkpoint.visualize_memory_budget_pareto",
    "compile.backend",
    "float8.precompute_float8_dynamic_scale_for_fsdp",
    "float8.filter_fqns",
)
"""Keys that move no memory. ``max_norm``: gradients are always clipped."""
HARMLESS_SECTIONS = (
    "job.",
    "profiling.",
    "metrics.",
    "lr_scheduler.",
    "checkpoint.",
    "comm.",
    "validation.",
    "debug.",
    "memory_estimation.",
    "training.dataloader.",
    "quantize.linear.",
    "quantize.grouped_mm.",
)
"""Sections that move no memory by themselves: quantization counts when ``model.converters`` names it."""

UNMODELLED: dict[str, tuple[object, str]] = {
    "debug.deterministic": (False, "workspaces of deterministic kernels are not modelled"),
    "checkpoint.create_seed_checkpoint": (False, "the whole model that one GPU then makes is not modelled"),
    "training.deterministic": (False, "workspaces of deterministic kernels are not modelled"),
    "comm.mode": ("default", "a dry run without other ranks is not modelled"),
    "parallelism.module_fqns_per_model_part": (None, "memcheck divides the layers itself"),
    "parallelism.pipeline_parallel_schedule_csv": ("", "the schedule of a CSV file is not read"),
    "parallelism.expert_parallel_comm_backend": ("standard", "DeepEP's buffers are not modelled"),
    "parallelism.pipeline_parallel_expert_parallel_overlap": (True, "the overlap's buffers are not modelled"),
    "parallelism.pipeline_parallel_split_points": ([], "memcheck divides the layers itself"),
    "experimental.pipeline_parallel_split_points": ([], "memcheck divides the layers itself"),
    "experimental.custom_import": ("", "code that the config imports may change anything"),
    "experimental.custom_args_module": ("", "code that the config imports may change anything"),
    "experimental.custom_model_path": ("", "code that the config imports may change anything"),
    "fault_tolerance": (None, "torchft's replicas are not modelled"),
}
