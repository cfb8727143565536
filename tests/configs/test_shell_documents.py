"""Files that a launch script writes itself: what is read of them, and what is not an argument of the job."""

from __future__ import annotations

import pytest

from memcheck.configs.arguments import load_arguments
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

SWIFT = (
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-4B --tuner_type full --torch_dtype bfloat16 --max_length 512"
    " --per_device_train_batch_size 1 --gradient_accumulation_steps 2"
)
TRAINER = (
    "torchrun --nproc_per_node 8 mine.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2"
    " --max_length 512 --bf16 True"
)
OFFLOADED = '{"fsdp": "full_shard auto_wrap offload", "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": $R}}'
ANSWERS = {"training.objective": "sft", "training.method": "full", "training.precision.params": "bf16"}


def _read(text: str, **stated: object) -> Imported:
    keys = {"hardware.gpu": "h100-80gb", **stated}
    return import_config("run.sh", text.encode(), {key: ReadSetting(each, "test") for key, each in keys.items()})


def _values(text: str, **stated: object) -> dict[str, object]:
    found = _read(text, **stated)
    assert not found.problems
    return {key: each.value for key, each in found.settings.items()}


@pytest.mark.parametrize(
    "before",
    [
        f'F="$(date)/f.json"\nR=true\ncat > "$F" <<EOF\n{OFFLOADED}\nEOF\n',
        f'F="$(date)/f.json"\nR=true\ncat <<-EOF > ${{F}}\n{OFFLOADED}\nEOF\n',
        f'F=f.json\nR=true\ntee "$F" <<EOF >/dev/null\n{OFFLOADED}\nEOF\n',
    ],
)
def test_a_file_that_the_script_writes_is_read(before: str) -> None:
    """``--fsdp $F`` was taken for a switch: what the file says of the host was lost."""
    found = _values(f"{before}{SWIFT} --fsdp ${{F}}\n")
    assert found["training.offload.parameters"] == "cpu"
    assert found["parallelism.reshard_after_forward"] is True


@pytest.mark.parametrize(
    ("line", "stated"), [(f"{SWIFT} --fsdp $F", {}), (f"{TRAINER} --fsdp $F", ANSWERS)], ids=["ms-swift", "Trainer"]
)
def test_words_of_fsdp_in_a_variable_are_asked_for(line: str, stated: dict[str, object]) -> None:
    """They were read as a whole division of everything."""
    (problem,) = _read(f"F=$(ls *.json)\n{line}\n", **stated).problems
    assert "`fsdp: $F` is a variable whose value cannot be read from the script" in problem.message


def test_a_file_for_deepspeed_is_read_where_it_is_written() -> None:
    """Its settings stand at the script's lines."""
    text = '{\n  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}\n}'
    found = _read(f"cat > ds.json <<'EOF'\n{text}\nEOF\n{TRAINER} --deepspeed ds.json\n", **ANSWERS)
    assert not found.problems
    assert found.settings["training.optimizer.offload"].value == "cpu"
    at = found.settings["parallelism.zero_stage"].location
    assert at is not None
    assert at.span.line == 3


@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("usage() {\n  cat <<EOF\n  run --tp 8 explains\nEOF\n}\nrun --pp 2", {"pp": "2"}),
        ("python - <<'PY'\nprint('--tp 8')\nPY\nrun --pp 2", {"pp": "2"}),
        ("sbatch <<EOF\nrun --pp 2\nEOF", {"pp": "2"}),
        ("cat <<EOF | sbatch\nrun --pp 2\nEOF", {"pp": "2"}),
        ("cat > job.sh <<EOF\nrun --pp 2\nEOF\nbash job.sh", {"pp": "2"}),
        ("cat <<EOF\nrun --pp 2", {"pp": "2"}),
    ],
    ids=["an explanation", "Python", "a batch script", "piped", "a script's file", "no end"],
)
def test_what_is_run_counts_and_what_is_shown_does_not(script: str, values: dict[str, str]) -> None:
    """Arguments in an explanation were the job's."""
    assert load_arguments("run.sh", script).values == values
