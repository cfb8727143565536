"""Accelerate's keys, and the plan keys for the same things. Read at accelerate 1.15.0:
``commands/config/config_args.py`` (ClusterConfig), ``commands/launch.py``, ``utils/dataclasses.py``
(FullyShardedDataParallelPlugin, DeepSpeedPlugin) and ``parallelism_config.py``.
"""

from __future__ import annotations

from memcheck.configs.key_table import key_table

KEYS = key_table("accelerate")


TYPE = "distributed_type"
PROCESSES = "num_processes"
MACHINES = "num_machines"
PRECISION = "mixed_precision"
OLD_PRECISION = "fp16"
FP8_BACKEND = "fp8_config.backend"

FSDP = "fsdp_config"
VERSION_KEY = f"{FSDP}.fsdp_version"
STRATEGY = f"{FSDP}.fsdp_sharding_strategy"
RESHARD = f"{FSDP}.fsdp_reshard_after_forward"
OFFLOAD = f"{FSDP}.fsdp_offload_params"
STATE_DICT = f"{FSDP}.fsdp_state_dict_type"
RANK0 = f"{FSDP}.fsdp_cpu_ram_efficient_loading"
CPU = "use_cpu"
CHECKPOINTING = f"{FSDP}.fsdp_activation_checkpointing"
WRAP = f"{FSDP}.fsdp_auto_wrap_policy"
WRAPPED = f"{FSDP}.fsdp_transformer_layer_cls_to_wrap"

PARALLEL = "parallelism_config.parallelism_config_"
REPLICATE = f"{PARALLEL}dp_replicate_size"
SHARD = f"{PARALLEL}dp_shard_size"

DEEPSPEED = "deepspeed_config"
OFFLOAD_PARAMETERS = f"{DEEPSPEED}.offload_param_device"
INIT = f"{DEEPSPEED}.zero3_init_flag"
GATHER = f"{DEEPSPEED}.zero3_save_16bit_model"
DEEPSPEED_FILE = f"{DEEPSPEED}.deepspeed_config_file"
ENGINE_CLIP = f"{DEEPSPEED}.gradient_clipping"

BACKEND = "dynamo_config.dynamo_backend"
OLD_BACKEND = "dynamo_backend"


LAUNCHED = (
    *(row.path for row in KEYS.rows["engine"]),
    *(name for name in KEYS.irrelevant[""] if name[-1] != "."),
    *(INIT, GATHER, DEEPSPEED_FILE, ENGINE_CLIP),
    *(VERSION_KEY, STRATEGY, RESHARD, OFFLOAD, STATE_DICT, RANK0, CHECKPOINTING, WRAP),
    *(f"{FSDP}.fsdp_{name}" for name in ("backward_prefetch", "forward_prefetch", "min_num_params")),
)
"""Keys of the sections that are arguments of ``accelerate launch``, too, under their last names."""
