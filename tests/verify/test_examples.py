"""The example plans, with few layers, verified against traced steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from memcheck.__main__ import main  # noqa: E402

EXAMPLES = {
    "gemma-3-4b-logits-8xa100-40gb": "--layers 6",
    "gpt2-124m-8xa100-40gb": "--layers 4",
    "gpt2-xl-2048": "--layers 4",
    "llama-3.1-70b-torchtitan-256xh100": "--layers 2",
    "llama-3.1-8b-fsdp-8xh100": "--layers 2",
    "llama-3.1-8b-long-context-8xh100": "--layers 2 --document 1",
    "llama-3.1-8b-lora-l40s": "--layers 2",
    "llama-3.1-8b-qlora-rtx-4090": "--layers 2",
    "llama-3.1-8b-tp4-a100-40gb": "--layers 2",
    "llama-3.2-1b-optimizers-a10g": "--layers 2 --document 2",
    "llama-3.2-3b-full-rtx-4090": "--layers 2",
    "mistral-7b-qlora-t4": "--layers 2",
    "qwen2.5-32b-fsdp-2x8xh100": "--layers 2",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_agrees(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every predicted peak is within 1.5 % of the traced one."""
    path = root / "examples" / f"{name}.yaml"
    code = main(["verify", str(path), *EXAMPLES[name].split(), "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert [(r["pipeline_rank"], r["error"], r["sentence"]) for r in answer["ranks"] if not r["agrees"]] == []
    assert answer["tolerance"] == 0.015
    assert code == 0


def test_the_documented_trace_is_what_is_printed(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's example, line by line, but for the versions of the libraries."""
    page = (root / "docs" / "internals" / "verify.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- Traced output of: memcheck (.+?) -->\n```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert shown
    monkeypatch.chdir(root)
    assert main(shown[1].split()) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if not line.startswith("traced on ")] == [
        line for line in shown[2].splitlines() if not line.startswith("traced on ")
    ]
