"""Words that no option of a framework takes."""

from __future__ import annotations

import json

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.judge import Gate, check_file

WORDS = [
    (framework, name)
    for framework, profile in FRAMEWORKS.items()
    for name, kind in profile.options.items()
    if kind is str or (isinstance(kind, tuple) and str in kind)
]


def test_a_word_that_an_option_does_not_know_is_no_defect() -> None:
    """It is a finding, or the option takes any word: never an exception of ours."""
    for zero_stage in [0, 3]:
        for framework, option in WORDS:
            plan = {
                "memcheck": 1,
                "model": "qwen3-30b-a3b",
                "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
                "parallelism": {"zero_stage": zero_stage},
                "training": {
                    "framework": framework,
                    "micro_batch_size": 1,
                    "sequence_length": 512,
                    "options": {option: "0x10"},
                },
            }
            results, traces = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
            assert (len(results), traces) == (1, []), (framework, option, zero_stage)
