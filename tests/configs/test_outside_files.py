"""A launcher's file outside of the config's folder is said to be there, and not to be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main


@pytest.mark.parametrize(
    ("name", "outside"), [("../other/fsdp.yaml", True), ("fsdp.yaml", False), ("sub/no.yaml", False)]
)
def test_a_file_outside_is_not_said_to_be_missing(
    name: str, outside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`../other/fsdp.yaml` exists, and memcheck does not read it."""
    for folder in ("job/.git", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "other/fsdp.yaml").write_text("distributed_type: FSDP\n", encoding="utf-8")
    (tmp_path / "job/g.sh").write_text(
        f"accelerate launch --config_file {name} sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert main(["check", "job/g.sh", "--gpu", "a100-80gb", "--gpus", "1"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert ("outside the config's repository or folder" in said) == outside
    assert ("there is no `" in said) != outside
    assert "copy the file into the config's folder" in said
