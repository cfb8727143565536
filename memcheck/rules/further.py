"""The rules that only other profiles than the gate have."""

# Written by `python -m docs.generate` from the rules' modules: add or change a module and run it again.

from __future__ import annotations

from memcheck.rules import (
    mem017_redundant_setting,
    mem107_wide_interval,
    mem204_vocabulary_not_divisible,
    mem207_tensor_parallel_across_nodes,
    mem213_gpus_per_node,
    mem217_pipeline_bubble,
    mem414_recompute_frees_nothing,
    mem415_half_precision_adam,
    mem418_adapters_reach_tower,
)
from memcheck.rules.types import Rule

FURTHER: tuple[Rule, ...] = (
    mem017_redundant_setting.RULE,
    mem107_wide_interval.RULE,
    mem204_vocabulary_not_divisible.RULE,
    mem207_tensor_parallel_across_nodes.RULE,
    mem213_gpus_per_node.RULE,
    mem217_pipeline_bubble.RULE,
    mem414_recompute_frees_nothing.RULE,
    mem415_half_precision_adam.RULE,
    mem418_adapters_reach_tower.RULE,
)
