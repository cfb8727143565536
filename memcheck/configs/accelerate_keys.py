"""Accelerate's keys, and the plan keys for the same things. Read at accelerate 1.15.0:
``commands/config/config_args.py`` (ClusterConfig), ``commands/launch.py``, ``utils/dataclasses.py``
(FullyShardedDataParallelPlugin, DeepSpeedPlugin) and ``parallelism_config.py``.
"""

from __future__ import annotations

from memcheck.configs.types import KeyRow

VERSION = "accelerate 1.15.0"
TITLE = "Accelerate"

TYPE = "distributed_type"
PROCESSES = "num_processes"
MACHINES = "num_machines"
PRECISION = "mixed_precision"
OLD_PRECISION = "fp16"
FP8_BACKEND = "fp8_config.backend"
RECIPES = {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8-mixed"}
"""``mixed_precision: no`` leaves it to the dtype in which the script loads the model."""

FSDP = "fsdp_config"
VERSION_KEY = f"{FSDP}.fsdp_version"
STRATEGY = f"{FSDP}.fsdp_sharding_strategy"
RESHARD = f"{FSDP}.fsdp_reshard_after_forward"
OFFLOAD = f"{FSDP}.fsdp_offload_params"
STATE_DICT = f"{FSDP}.fsdp_state_dict_type"
STATE_DICTS = {"FULL_STATE_DICT": "full", "SHARDED_STATE_DICT": "sharded"}
RANK0 = f"{FSDP}.fsdp_cpu_ram_efficient_loading"
CPU = "use_cpu"
CHECKPOINTING = f"{FSDP}.fsdp_activation_checkpointing"
WRAP = f"{FSDP}.fsdp_auto_wrap_policy"
WRAPPED = f"{FSDP}.fsdp_transformer_layer_cls_to_wrap"
STRATEGIES = {
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "HYBRID_SHARD_ZERO2",
}
"""The numbers of ``FSDP_SHARDING_STRATEGY`` in ``utils/constants.py``."""

PARALLEL = "parallelism_config.parallelism_config_"
REPLICATE = f"{PARALLEL}dp_replicate_size"
SHARD = f"{PARALLEL}dp_shard_size"
DEGREES = (
    KeyRow(f"{PARALLEL}tp_size", "parallelism.tensor"),
    KeyRow(f"{PARALLEL}cp_size", "parallelism.context", aliases=(f"{PARALLEL}sp_size",)),
)
"""``sp_size`` is Ulysses through DeepSpeed: the sequence is cut over as many ranks, too."""

DEEPSPEED = "deepspeed_config"
OFFLOAD_PARAMETERS = f"{DEEPSPEED}.offload_param_device"
INIT = f"{DEEPSPEED}.zero3_init_flag"
GATHER = f"{DEEPSPEED}.zero3_save_16bit_model"
DEEPSPEED_FILE = f"{DEEPSPEED}.deepspeed_config_file"
PLACES: dict[str, object] = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
ENGINE = (
    KeyRow(f"{DEEPSPEED}.zero_stage", "parallelism.zero_stage", default=2),
    KeyRow(f"{DEEPSPEED}.gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    KeyRow(path=f"{DEEPSPEED}.offload_optimizer_device", key="training.optimizer.offload", kind="word", words=PLACES),
    KeyRow(path=OFFLOAD_PARAMETERS, key="training.offload.parameters", kind="word", words=PLACES),
)
ENGINE_CLIP = f"{DEEPSPEED}.gradient_clipping"

BACKEND = "dynamo_config.dynamo_backend"
OLD_BACKEND = "dynamo_backend"

HARMLESS = (
    "compute_environment",
    "debug",
    "machine_rank",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_env",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "command_file",
    "commands",
    f"{FSDP}.fsdp_sync_module_states",
    f"{FSDP}.fsdp_transformer_cls_names_to_wrap",
    f"{FSDP}.fsdp_use_orig_params",
    f"{FSDP}.fsdp_transformer_layer_cls_to_wrap",
    f"{DEEPSPEED}.deepspeed_multinode_launcher",
    f"{DEEPSPEED}.deepspeed_hostfile",
    f"{DEEPSPEED}.deepspeed_inclusion_filter",
    f"{DEEPSPEED}.deepspeed_exclusion_filter",
    f"{DEEPSPEED}.offload_optimizer_nvme_path",
    f"{DEEPSPEED}.offload_param_nvme_path",
    f"{DEEPSPEED}.seq_parallel_communication_data_type",
    f"{PARALLEL}cp_comm_strategy",
    f"{PARALLEL}cp_backend",
    f"{PARALLEL}sp_backend",
    f"{PARALLEL}sp_seq_length",
    f"{PARALLEL}sp_seq_length_is_variable",
    f"{PARALLEL}sp_attn_implementation",
    *(f"fp8_config.{name}" for name in ("fp8_format", "amax_history_len", "amax_history_length", "margin", "interval")),
    *(f"fp8_config.{name}" for name in ("amax_compute_algo", "amax_compute_algorithm", "pad_inner_dim", "opt_level")),
    *(f"fp8_config.{name}" for name in ("optimization_level", "use_autocast_during_eval")),
    *(f"dynamo_config.dynamo_{name}" for name in ("use_dynamic", "use_fullgraph")),
)
HARMLESS_SECTIONS = ("mpirun_config.",)
"""Sections of jobs whose processes run on CPUs alone."""

LAUNCHED = (
    *(row.path for row in ENGINE),
    *HARMLESS,
    *(INIT, GATHER, DEEPSPEED_FILE, ENGINE_CLIP),
    *(VERSION_KEY, STRATEGY, RESHARD, OFFLOAD, STATE_DICT, RANK0, CHECKPOINTING, WRAP),
    *(f"{FSDP}.fsdp_{name}" for name in ("backward_prefetch", "forward_prefetch", "min_num_params")),
)
"""Keys of the sections that are arguments of ``accelerate launch``, too, under their last names."""

UNMODELLED: dict[str, tuple[object, str]] = {
    "fp8_config.enable_fsdp_float8_all_gather": (False, "weights that are gathered in fp8 are priced in 16 bits"),
    "fp8_config.override_linear_precision": (None, "products that are left in 16 bits are priced in fp8"),
    "dynamo_config.dynamo_use_regional_compilation": (False, "blocks are priced as if the whole model was compiled"),
    f"{FSDP}.fsdp_ignored_modules": (None, "modules that FSDP leaves alone are not modelled"),
    f"{FSDP}.fsdp_min_num_params": (0, "units by size are not modelled: memcheck shards block by block"),
    f"{FSDP}.fsdp_limit_all_gathers": (True, "units that are gathered without a limit are not modelled"),
    "dynamo_config.dynamo_mode": ("default", "graphs that a mode captures keep private pools, which are not modelled"),
    f"{DEEPSPEED}.deepspeed_moe_layer_cls_names": (None, "leaf modules of mixtures are not modelled"),
    "fsdp_config.fsdp_forward_prefetch": (False, "explicit forward prefetch, one more gathered unit, is not modelled"),
}
