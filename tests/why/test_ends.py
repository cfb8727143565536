"""What to do about ends of each kind, in sentences of their own, and plans that a log contradicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.edge.screen import Screen
from memcheck.why.answer import Diagnosis, headline, next_steps, render_text
from memcheck.why.run import answer

WIDE = Screen(width=400)

OPTIMIZER = """Step 0 loss 11.93
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    optimizer.step()
  File "/torch/optim/adamw.py", line 171, in _init_group
    state["exp_avg_sq"] = torch.zeros_like(
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB (GPU 0; 23.69 GiB total capacity; \
22.55 GiB already allocated; 130.69 MiB free; 22.91 GiB reserved in total by PyTorch)
"""
PLAN = """memcheck: 1
model: qwen2.5-1.5b
hardware: {gpu: rtx-3090}
training: {objective: sft, method: full, sequence_length: LENGTH, micro_batch_size: ROWS}
"""


def _of(*evidence: str, plan: str | None = None) -> Diagnosis:
    return answer(evidence, stdin=lambda size: b"", plan=plan)


@pytest.mark.parametrize(
    ("log", "says", "words"),
    [
        ("DataLoader worker (pid 4411) is killed by signal: Bus error.", "Shared memory", ("--shm-size", "--ipc=host")),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", "another rank", ("other ranks' logs",)),
        ("*** JOB 4411 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***", "time limit", ("--time",)),
        ("*** JOB 4411 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***", "preempted", ("checkpoint",)),
        ("OSError: [Errno 28] No space left on device", "disk is full", ("df -h",)),
    ],
)
def test_each_end_has_its_own_advice(log: str, says: str, words: tuple[str, ...]) -> None:
    """Each end has its own advice."""
    found = _of(log)
    assert says in headline(found)
    steps = " ".join(next_steps(found))
    assert [word for word in words if word not in steps] == []
    assert "--mem)" not in steps
    assert "traceback" not in steps


def _planned(tmp_path: Path, length: int, rows: int) -> Diagnosis:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("LENGTH", str(length)).replace("ROWS", str(rows)))
    return _of(OPTIMIZER, plan=str(path))


@pytest.mark.slow
def test_a_run_that_outlived_the_highest_moment_did_not_end_as_predicted(tmp_path: Path) -> None:
    """A run that outlived the highest moment did not end as predicted."""
    found = _planned(tmp_path, 4096, 8)
    assert found.explained is not None
    first = found.explained.causes[0]
    assert first.id == "unknown"
    assert "Not as predicted" in first.text
    assert "backward" in first.text
    assert "as-predicted" not in [cause.id for cause in found.explained.causes]
    assert "larger-micro-batch" not in render_text(found, WIDE)


def test_a_run_that_dies_where_the_plan_says_ends_as_predicted(tmp_path: Path) -> None:
    """A run that dies where the plan says ends as predicted."""
    found = _planned(tmp_path, 512, 1)
    assert found.explained is not None
    assert found.explained.causes[0].id == "as-predicted"


def test_what_filled_the_gpu_is_named() -> None:
    """What filled the GPU is named."""
    texts = " ".join(statement.text for statement in _of(OPTIMIZER).statements)
    assert "22.55 GiB that PyTorch had allocated" in texts


def test_a_plan_next_to_an_end_without_memory_is_not_an_empty_section(tmp_path: Path) -> None:
    """A plan next to an end without memory is not an empty section."""
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("LENGTH", "512").replace("ROWS", "1"))
    text = render_text(_of("OSError: [Errno 28] No space left on device", plan=str(path)), WIDE)
    assert "does not explain this end" in text
