"""Packed rows whose documents a mask keeps apart, against traces of transformers' own code."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from benchmarks.objective_cases import plan
from memcheck.judge import Gate, check_file

MIB = 2**20
LLAMA: dict[str, Any] = {
    "dims": {
        "family": "llama",
        "layers": 8,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 64,
        "ffn": 8192,
        "vocab": 128256,
        "tied": True,
        "max_positions": 131072,
        "hidden_act": "silu",
        "attention_bias": False,
    },
    "id": "llama-3.2-1b.L8",
    "objective": "lm",
    "batch": 1,
    "seq": 4096,
    "precision": "bf16",
    "optimizer": "adamw",
    "opt_impl": "foreach",
    "attn": "sdpa",
}
TRACED = (
    ({}, 14208.604),
    ({"recompute": "full", "opt_impl": "fused"}, 10508.378),
    ({"precision": "amp", "trainer_autocast": True}, 20581.804),
)
"""One row of 4,096 tokens under torch 2.13 and transformers 5.23 on fake tensors, with transformers' mask of the row;
MiB at the peak.
"""


def _allocated(written: dict[str, Any], **training: object) -> int:
    text = yaml.safe_dump(written | {"training": written["training"] | training})
    (found,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert not traces
    assert found.estimate is not None
    return found.estimate.allocated_bytes


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_masks_move_as_much_under_deepspeed(recompute: str) -> None:
    """Its engine runs transformers' own classes: what a mask adds to a step is what it adds without the engine."""
    added = set()
    for framework in ("huggingface", "deepspeed"):
        written = plan({**LLAMA, "precision": "amp", "recompute": recompute, "seq": 8192})
        written["training"] |= {"framework": framework, "optimizer": "adamw", "precision": "bf16-mixed"}
        written["training"].pop("loss", None)
        added.add(_allocated(written, sequences="masked") - _allocated(written, sequences="packed"))
    (bytes_added,) = added
    assert bytes_added > 0


@pytest.mark.parametrize(("knobs", "peak_mib"), TRACED)
@pytest.mark.parametrize("rows", ["masked", "flattened"])
def test_a_mask_of_documents_is_priced(knobs: dict[str, object], peak_mib: float, rows: str) -> None:
    """Keys and values are repeated for the kernel that takes a mask, which every layer keeps; two rows end to end are
    one of twice the length.
    """
    written = plan({**LLAMA, **knobs})
    written["training"]["sequences"] = rows
    if rows == "flattened":
        written["training"] |= {"micro_batch_size": 2, "sequence_length": 2048}
    assert _allocated(written) == pytest.approx(peak_mib * MIB, rel=1e-4)
