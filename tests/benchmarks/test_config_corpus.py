"""The benchmark over configs that people commit tells what was estimated from what no plan can say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.config_corpus import main

GOOD = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 1024\nmicro_batch_size: 1\nlearning_rate: 2e-5\n"


def test_a_corpus_is_counted_by_what_became_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file is estimated, one is beyond a plan, one names a file that is gone, one fails for another reason than
    memory, one trains on pictures, one is no config.
    """
    folder = tmp_path / "axolotl"
    folder.mkdir()
    (folder / "good.yml").write_text(GOOD)
    (folder / "rl.yml").write_text(f"{GOOD}rl: grpo\n")
    (folder / "gone.yml").write_text(f"{GOOD}deepspeed: gone/other.json\nbrand_new_key: 1\n")
    (folder / "targets.yml").write_text(f"{GOOD}adapter: lora\nlora_r: 8\nlora_target_modules: [q_prj]\n")
    (folder / "seen.yml").write_text(
        f"{GOOD}unfrozen_parameters: [a]\nkd_trainer: true\nprocessor_type: AutoProcessor\n"
    )
    (folder / "notes.yml").write_text("apples: 3\n")
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "## axolotl" in out
    assert "5 configs, 1 estimated: 33% of those that a plan can say, 25% of those that train a known model" in out
    assert "beyond a plan: 2" in out
    assert "failed: 2" in out
    assert "no linear layer of the blocks is called" in out
    assert "brand_new_key" in out
    assert "crashed" not in out
