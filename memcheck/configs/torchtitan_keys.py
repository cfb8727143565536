"""torchtitan's keys, and the plan keys. Read at torchtitan 0.2.2, ``torchtitan/config/job_config.py``: the last release
whose jobs are TOML files; later ones are Python functions.

The old names are those of 0.1 and of 2024 (``training.batch_size``, ``experimental.*``).
"""

from __future__ import annotations

from memcheck.configs.key_table import key_table

KEYS = key_table("torchtitan")


GLOBAL_BATCH = "training.global_batch_size"
LAYERS_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
FEWER_FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
FEWER_LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
PIPELINE_BATCH = "parallelism.pipeline_parallel_microbatch_size"
OLD_PIPELINE = "experimental.pipeline_parallel_degree"
"""Where the degree stood then; such releases cut a local batch into as many parts as there are ranks, and gave the
first and the last stage no fewer layers (parallelisms/pipelining_utils.py at 9dec370)."""
RESHARD = "parallelism.fsdp_reshard_after_forward"
CHECKPOINT_MODE = "activation_checkpoint.mode"
CHECKPOINT_OPTION = "activation_checkpoint.selective_ac_option"
EXPORTED = "checkpoint.export_dtype"
VALIDATION = (("validation.local_batch_size", 8), ("validation.seq_len", 2048))
REDUCED_DTYPE = "training.mixed_precision_reduce"
STORED_DTYPE = "training.dtype"
COMPUTE_DTYPE = "training.mixed_precision_param"
COMPILED_PARTS = "compile.components"
CONVERTERS = "model.converters"
OLD_FLOAT8 = "float8.enable_float8_linear"
DEFAULT_LOCAL_BATCH = 8
