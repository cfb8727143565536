"""The verdict on every example, by hand: regenerating the golden files cannot change it unnoticed."""

from __future__ import annotations

import pytest

from memcheck.rules.result import PlanResult
from tests.examples.rendered import NAMES, results

# Errors and warnings; MEM103 and MEM104 say how near to the limit a plan is, which is for the golden files.
VERDICTS = {
    "deepseek-v3-1024xh100": {"deepseek-v3-1024xh100": ("passed", [])},
    "gemma-3-4b-logits-8xa100-40gb": {"gemma-3-4b-logits-8xa100-40gb": ("failed", ["MEM101"])},
    "gpt-175b-megatron-64xa100": {"gpt-175b-megatron-64xa100": ("passed", [])},
    "gpt2-124m-8xa100-40gb": {"gpt2-124m-8xa100-40gb": ("passed", [])},
    "gpt2-xl-2048": {"gpt2-xl-2048": ("failed", ["MEM401"])},
    "llama-3.1-405b-2048xh100": {"llama-3.1-405b-2048xh100": ("passed", [])},
    "llama-3.1-405b-inference-16xh100": {"llama-3.1-405b-inference-16xh100": ("passed", ["MEM203"])},
    "llama-3.1-70b-96xh100": {"llama-3.1-70b-96xh100": ("error", ["MEM201"])},
    "llama-3.1-70b-torchtitan-256xh100": {"llama-3.1-70b-torchtitan-256xh100": ("passed", [])},
    "llama-3.1-8b-four-a100-40gb": {
        "tp4-batch-4": ("failed", ["MEM101"]),
        "zero2-checkpointing": ("failed", ["MEM101"]),
        "tp2-pp2-offloaded": ("passed", []),
    },
    "llama-3.1-8b-fsdp-8xh100": {"llama-3.1-8b-fsdp-8xh100": ("passed", [])},
    "llama-3.1-8b-long-context-8xh100": {
        "llama-3.1-8b-131k-cp8": ("passed", []),
        "llama-3.1-8b-262k-cp8": ("failed", ["MEM102", "MEM401"]),
    },
    "llama-3.1-8b-lora-l40s": {"llama-3.1-8b-lora-l40s": ("failed", ["MEM101"])},
    "llama-3.1-8b-no-sync-8xa100-40gb": {"llama-3.1-8b-no-sync-8xa100-40gb": ("failed", ["MEM101"])},
    "llama-3.1-8b-qlora-rtx-4090": {"llama-3.1-8b-qlora-rtx-4090": ("passed", [])},
    "llama-3.1-8b-tp4-a100-40gb": {"llama-3.1-8b-tp4-a100-40gb": ("failed", ["MEM101"])},
    "llama-3.1-8b-zero2-8xa100-80gb": {"llama-3.1-8b-zero2-8xa100-80gb": ("passed", [])},
    "llama-3.2-1b-dpo-a100-40gb": {
        "llama-3.2-1b-dpo-trl-0.29": ("failed", ["MEM102"]),
        "llama-3.2-1b-dpo-precomputed": ("passed", []),
        "llama-3.2-1b-dpo-trl-1.16": ("passed", []),
    },
    "llama-3.2-1b-optimizers-a10g": {
        "llama-3.2-1b-adamw-foreach": ("failed", ["MEM101"]),
        "llama-3.2-1b-adamw-fused": ("failed", ["MEM102"]),
        "llama-3.2-1b-adamw-8bit": ("passed", []),
    },
    "llama-3.2-3b-full-rtx-4090": {"llama-3.2-3b-full-rtx-4090": ("failed", ["MEM101"])},
    "llama-3.3-70b-inference-4xh100": {
        "llama-3.3-70b-serve-8k": ("passed", []),
        "llama-3.3-70b-serve-131k": ("failed", ["MEM101"]),
    },
    "llama-3.3-70b-loading-32xh100": {
        "loaded-by-eight": ("failed", ["MEM106"]),
        "saved-by-one": ("failed", ["MEM106"]),
        "saved-by-all": ("passed", []),
    },
    "llama-3.3-70b-zero3-offload-8xa100": {"llama-3.3-70b-zero3-offload-8xa100": ("failed", ["MEM106"])},
    "mistral-7b-qlora-t4": {"mistral-7b-qlora-t4": ("failed", ["MEM301"])},
    "mixtral-8x7b-ep8-64xh100": {
        "mixtral-8x7b-balanced": ("passed", []),
        "mixtral-8x7b-unbalanced": ("failed", ["MEM101"]),
    },
    "qwen2.5-32b-fsdp-2x8xh100": {"qwen2.5-32b-fsdp-2x8xh100": ("passed", [])},
    "qwen2.5-7b-tp8-8xh100": {"qwen2.5-7b-tp8-8xh100": ("error", ["MEM202", "MEM203"])},
    "rough-7b-a100-80gb": {"rough-7b-a100-80gb": ("failed", ["MEM101"])},
    "vllm-llama-3.3-70b-4xh100": {
        "llama-3.3-70b-eager": ("passed", []),
        "llama-3.3-70b-graphs": ("passed", ["MEM702"]),
    },
    "vllm-qwen3-32b-1xh100": {"qwen3-32b-16k": ("passed", []), "qwen3-32b-32k": ("failed", ["MEM701"])},
}
NEARNESS = {"MEM103", "MEM104"}


@pytest.mark.parametrize("name", NAMES)
def test_verdict(name: str) -> None:
    """Each document's status and the rules it breaks are those of the table."""
    found = {plan.name: (plan.status, sorted({f.code for f in plan.findings} - NEARNESS)) for plan in results(name)}
    assert found == VERDICTS[name]


def test_the_table_is_complete() -> None:
    """Every file has a row, and no row is without a file."""
    assert sorted(VERDICTS) == NAMES


def test_about_half_fail() -> None:
    """The examples show both verdicts, and failures of memory, of layout, of precision and of training."""
    rows = [row for documents in VERDICTS.values() for row in documents.values()]
    failing = [codes for status, codes in rows if status != "passed"]
    assert 0.4 <= len(failing) / len(rows) <= 0.6
    assert {code[:4] for codes in failing for code in codes} >= {"MEM1", "MEM2", "MEM3", "MEM4"}


def test_the_description_says_the_verdict() -> None:
    """Who reads only the list of plans must not take an example that fails on purpose for a bug."""
    for name in NAMES:
        for plan in results(name):
            start = "Passes" if plan.status == "passed" else "Fails on purpose: "
            assert description(plan).startswith(start), plan.name


def description(plan: PlanResult) -> str:
    """The plan's own words."""
    assert isinstance(plan.values, dict)
    return str(plan.values["description"])
