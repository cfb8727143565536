"""What a plan says of its own judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.judge import Gate, check_file
from tests.cli.plans import write, write_over
from tests.rules.configured import settings_of
from tests.rules.plans import found


@pytest.mark.parametrize(
    ("gpu", "findings"),
    [
        ("h100-80gb", []),
        ("{name: h100-80gb, memory_gib: 79.10}", []),
        ("{name: h100-80gb, memory_gib: 79.4}", []),
        ("{name: h100-80gb, memory_gib: 79.6}", [("memory_gib", "error")]),
        ("{name: h100-80gb, memory_gib: 100000}", [("memory_gib", "error")]),
        ("{name: 'NVIDIA H100 80GB HBM3', memory_gib: 100000}", [("memory_gib", "error")]),
        ("{name: H100-80GB, memory_gib: 100000}", [("memory_gib", "error")]),
        ("{name: h100-80gb, memory_gib: 40}", []),
        ("{name: h100-80gb, bf16_tflops: 5000, nvlink_gbs: 100}", [("bf16_tflops", "warning")]),
        ("{name: h100-80gb, memory_gib: 90, hbm_gbs: 9000}", [("memory_gib", "error"), ("hbm_gbs", "warning")]),
        ("{name: t4, fp8_tflops: 1}", []),
        ("{name: my-prototype, memory_gib: 100000}", []),
    ],
)
def test_overridden_gpu(gpu: str, findings: list[tuple[str, str]]) -> None:
    """What exceeds the catalog's figure is found under every name of the GPU: memory as an error, rates as warnings."""
    seen = [(each.pointer.removeprefix("/hardware/gpu/"), each.severity) for each in found("MEM601", gpu=gpu)]
    assert seen == findings


def test_plan_cannot_make_room_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that fits a figure of its own fails by the rule, which names the catalog's."""
    path = write_over(tmp_path)
    text = path.read_text(encoding="utf-8").replace("gpu: rtx-4090", "gpu: {name: rtx-4090, memory_gib: 100000}")
    path.write_text(text, encoding="utf-8")
    assert main(["check", "--format=concise", str(path)]) == 1
    out = capsys.readouterr().out
    assert "MEM601" in out
    assert "MEM101" not in out
    assert "23.52 GiB of usable memory, and the plan says 100,000" in out


def test_command_line_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another GPU on the command line, or another figure for it, is no finding of the file."""
    path = write(tmp_path, gpu="{name: h100-80gb, memory_gib: 90}")
    assert main(["check", "--gpu", "h100-80gb", str(path)]) == 0
    assert "MEM601" not in capsys.readouterr().out
    assert main(["estimate", "--set", "hardware.gpu.memory_gib=500", str(write(tmp_path, "plain"))]) == 0
    assert "MEM601" not in capsys.readouterr().out


@pytest.mark.parametrize(("policy", "count"), [("require-interval = true", 1), ("max-gpus = 100", 0)])
def test_only_a_policy_that_requires_the_interval_does(root: Path, policy: str, count: int) -> None:
    """A policy about something else leaves a plan alone whose interval crosses the limit."""
    text = (root / "docs/rules/examples/MEM606.bad.yaml").read_bytes()
    settings = settings_of(b"# memcheck.toml: [policy]\n# memcheck.toml: " + policy.encode() + b"\n")
    (result,), _ = check_file("plan.yaml", text, Gate(settings=settings))
    codes = [finding.code for finding in result.findings]
    assert codes.count("MEM606") == count
    assert "MEM104" in codes
