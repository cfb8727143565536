"""Every rule: those with a check, and those whose findings are made while a file is read or a model is priced."""

from __future__ import annotations

from memcheck.rules import (
    mem001_unreadable_file,
    mem002_invalid_yaml,
    mem003_duplicate_key,
    mem004_yaml_number_trap,
    mem005_yaml_boolean_trap,
    mem006_broken_extends,
    mem007_too_complex,
    mem010_invalid_plan,
    mem011_unknown_key,
    mem012_missing_key,
    mem013_wrong_type,
    mem014_invalid_value,
    mem015_conflicting_keys,
    mem020_unknown_model,
    mem021_unknown_gpu,
    mem022_unsupported_architecture,
    mem023_unread_config_key,
    mem024_unreadable_config,
    mem025_no_memory_model,
    mem030_invalid_suppression,
    mem031_unused_suppression,
    mem032_expired_suppression,
)
from memcheck.rules.checks import CHECKS
from memcheck.rules.types import Rule

RULES: tuple[Rule, ...] = (
    mem001_unreadable_file.RULE,
    mem002_invalid_yaml.RULE,
    mem003_duplicate_key.RULE,
    mem004_yaml_number_trap.RULE,
    mem005_yaml_boolean_trap.RULE,
    mem006_broken_extends.RULE,
    mem007_too_complex.RULE,
    mem010_invalid_plan.RULE,
    mem011_unknown_key.RULE,
    mem012_missing_key.RULE,
    mem013_wrong_type.RULE,
    mem014_invalid_value.RULE,
    mem015_conflicting_keys.RULE,
    mem020_unknown_model.RULE,
    mem021_unknown_gpu.RULE,
    mem022_unsupported_architecture.RULE,
    mem023_unread_config_key.RULE,
    mem024_unreadable_config.RULE,
    mem025_no_memory_model.RULE,
    mem030_invalid_suppression.RULE,
    mem031_unused_suppression.RULE,
    mem032_expired_suppression.RULE,
    *CHECKS,
)
"""In the order of their codes."""
