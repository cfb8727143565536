"""Every layer against one of real PyTorch, family by family and recipe by recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from tests.frameworks.transformers.layers import curve_of

DATA = json.loads(Path(__file__).with_name("traced_layers.json").read_text())
CASES: list[dict[str, Any]] = DATA["cases"]
BYTES_PER_TOKEN = 9
"""What a layer may be off: fp32 statistics of LayerNorm are bf16 on the traced CPU, and kernels return 1 KiB of state."""


def _curve(case: dict[str, Any]) -> Any:
    model = DATA["models"][case["model"]]
    mode = {True: "full", "selective": "selective"}.get(case.get("recompute", False), "none")
    setting = {"batch": case["batch"], "sequence": case["sequence"], **case.get("setting", {})}
    if "style" in setting:
        setting["style"] = FRAMEWORKS[setting["style"]].style
    return curve_of(model["config"], model["layer"], recompute=mode, lora=case.get("lora", 0), **setting)


def test_a_layer_keeps_and_reaches_what_pytorch_does() -> None:
    """Saved bytes, forward and backward high points agree with the trace: 0.01, 0.1 and 0.02 %."""
    for case in CASES:
        curve = _curve(case)
        slack = BYTES_PER_TOKEN * case["batch"] * case["sequence"]
        # the trace sees autocast's weight copies until autocast ends
        kept = curve.saved_bytes + curve.autocast_cache_bytes
        assert kept == pytest.approx(case["saved"], rel=1e-4, abs=slack), case["case"]
        if case["forward"] is not None:
            assert curve.forward_peak.bytes == pytest.approx(case["forward"], rel=1e-3, abs=slack), case["case"]
        if case["backward"] is not None:
            rows = case["batch"] * case["sequence"]
            setting = case.get("setting", {})
            if setting.get("sequence_parallel"):
                rows //= setting["tensor_parallel"]
            width = DATA["models"][case["model"]]["config"]
            hidden = next(width[k] for k in ("hidden_size", "n_embd", "d_model") if k in width)
            output_gradient = rows * hidden * (4 if setting.get("param_dtype") == "fp32" else 2)
            reached = curve.backward_peak.bytes - curve.saved_bytes - output_gradient
            assert reached + kept == pytest.approx(case["backward"] + case["saved"], rel=2e-4, abs=slack), case["case"]


def test_every_traced_model_is_used() -> None:
    """No model of the file is left without a case."""
    assert {c["model"] for c in CASES} == set(DATA["models"])
