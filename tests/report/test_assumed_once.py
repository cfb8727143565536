"""What a breakdown says of assumptions: one line per key, and no name twice in its heading."""

from __future__ import annotations

import pytest

from memcheck.__main__ import main

LINE = "torchrun --nproc_per_node 8 sft.py --model_name_or_path Qwen/Qwen2.5-7B --max_length 2048 --packing False"


def test_every_assumed_key_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Two reasons for one value stand on one line; a command is its own name and place."""
    assert main(["estimate", "--gpu", "a100-80gb", "--", *LINE.split()]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "<command>"
    table = out.partition("because the plan does not say")[2]
    keys = [line.split()[0] for line in table.splitlines() if line and not line.startswith(" ")]
    assert "training.expandable_segments" in keys
    assert len(keys) == len(set(keys))
    assert "would be" not in out.partition("assumes:")[2].partition("host:")[0]
