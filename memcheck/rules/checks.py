"""The rules of the gate with a check of their own, in order: a check loads those that a plan is about."""

# Written by `python -m docs.generate` from the rules' modules: add or change a module and run it again.

from __future__ import annotations

from memcheck.rules import when
from memcheck.rules.when import Gated

CHECKS: tuple[Gated, ...] = (
    Gated("MEM101", "mem101_exceeds_capacity", when.strained, needs_estimate=True),
    Gated("MEM102", "mem102_above_fail_threshold", when.strained, needs_estimate=True),
    Gated("MEM103", "mem103_above_warn_threshold", when.strained, needs_estimate=True),
    Gated("MEM104", "mem104_interval_crosses_limit", when.strained, needs_estimate=True),
    Gated("MEM105", "mem105_wasted_memory", when.wasteful, needs_estimate=True),
    Gated("MEM106", "mem106_host_memory", when.states_host_memory, needs_estimate=True),
    Gated("MEM108", "mem108_unpacked_rows", when.limited_rows, needs_estimate=True),
    Gated("MEM201", "mem201_world_size", when.miscounted, blocking=True),
    Gated("MEM202", "mem202_heads_not_divisible", when.split, blocking=True),
    Gated("MEM203", "mem203_kv_heads_not_divisible", when.split, blocking=True),
    Gated("MEM205", "mem205_experts_not_divisible", when.split, blocking=True),
    Gated("MEM206", "mem206_layers_not_divisible", when.staged, blocking=True),
    Gated("MEM208", "mem208_zero_without_data_parallel", when.idle_stage),
    Gated("MEM209", "mem209_sequence_parallel_without_tensor", when.states_sequence),
    Gated("MEM210", "mem210_sequence_not_divisible", when.split, blocking=True, batch=True),
    Gated("MEM211", "mem211_pipeline_micro_batches", when.pipelined, blocking=True, batch=True),
    Gated("MEM212", "mem212_unsupported_parallelism", when.parallel, blocking=True),
    Gated("MEM214", "mem214_shard_group", when.states_group, blocking=True),
    Gated("MEM215", "mem215_unsupported_zero_stage", when.unknown_stage, blocking=True),
    Gated("MEM216", "mem216_unsupported_schedule", when.pipelined, blocking=True),
    Gated("MEM218", "mem218_padded_shards", when.shards_experts),
    Gated("MEM301", "mem301_no_bf16", when.no_bf16),
    Gated("MEM302", "mem302_no_fp8", when.fp8),
    Gated("MEM303", "mem303_no_flash_attention", when.flash),
    Gated("MEM401", "mem401_sequence_beyond_positions", when.beyond_positions, batch=True),
    Gated("MEM402", "mem402_global_batch_not_divisible", when.states_global_batch, batch=True),
    Gated("MEM403", "mem403_framework_unset", when.no_framework, blocking=True),
    Gated("MEM404", "mem404_unknown_option", when.unknown_options),
    Gated("MEM405", "mem405_lora_without_method", when.idle_adapters),
    Gated("MEM406", "mem406_option_value", when.states_options, blocking=True),
    Gated("MEM407", "mem407_unsupported_precision", when.unknown_recipe),
    Gated("MEM408", "mem408_unsupported_setting", when.unoffered),
    Gated("MEM409", "mem409_contradicting_options", when.restates),
    Gated("MEM410", "mem410_freeze_range", when.freezes),
    Gated("MEM411", "mem411_mixed_precision_ignored", when.recipe_ignored),
    Gated("MEM412", "mem412_unsupported_offload", when.offloads),
    Gated("MEM413", "mem413_no_such_module", when.names_modules),
    Gated("MEM416", "mem416_setting_without_effect", when.may_idle, batch=True),
    Gated("MEM417", "mem417_unsupported_objective", when.objective, batch=True),
    Gated("MEM419", "mem419_fsdp_stops", when.wraps_layers),
    Gated("MEM601", "mem601_overridden_gpu", when.foreign_card),
    Gated("MEM602", "mem602_loosened_limit", when.locked),
    Gated("MEM603", "mem603_forbidden_gpu", when.governed),
    Gated("MEM604", "mem604_too_many_gpus", when.governed),
    Gated("MEM605", "mem605_too_many_gpu_hours", when.governed, needs_estimate=True),
    Gated("MEM606", "mem606_interval_required", when.governed, needs_estimate=True),
    Gated("MEM701", "mem701_engine_does_not_boot", when.engine_fails, needs_estimate=True),
    Gated("MEM702", "mem702_boot_depends", when.boot_depends, needs_estimate=True),
    Gated("MEM703", "mem703_demand_not_held", when.overcrowded, needs_estimate=True),
    Gated("MEM704", "mem704_kv_heads_replicated", when.serves_divided),
)

BEYOND_GATE = {
    "MEM017": "review",
    "MEM107": "research",
    "MEM204": "review",
    "MEM207": "review",
    "MEM213": "review",
    "MEM217": "review",
    "MEM414": "review",
    "MEM415": "review",
    "MEM418": "review",
}
"""The rules of `further.py`, and the profile that has them."""
