"""A serving engine's failed start: its log's figures, its own answer to a plan, and the flags that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.edge.screen import Screen
from memcheck.why.answer import Diagnosis, as_data, headline, render_text
from memcheck.why.run import answer

NO_BLOCKS = """INFO 08-12 10:22:07 [api_server.py:1755] vLLM API server version 0.11.0
INFO 08-12 10:22:07 [cli_args.py:261] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', \
'max_model_len': 32768, 'gpu_memory_utilization': 0.2}
INFO 08-12 10:22:31 [gpu_model_runner.py:1892] Model loading took 14.9889 GiB and 4.501 seconds
(VllmWorker rank=0 pid=777) INFO 08-12 10:22:50 [gpu_worker.py:255] Available KV cache memory: -1.31 GiB
ERROR 08-12 10:22:50 [core.py:632] EngineCore failed to start.
ERROR 08-12 10:22:50 [core.py:632] ValueError: No available memory for the cache blocks. \
Try increasing `gpu_memory_utilization` when initializing the engine.
"""
TOO_LONG = """+ vllm serve Qwen/Qwen3-32B --max-model-len 32000
INFO 10-08 10:22:07 [api_server.py:1839] vLLM API server version 0.11.0
INFO 10-08 10:22:31 [gpu_model_runner.py:2653] Model loading took 61.0347 GiB and 24.501 seconds
INFO 10-08 10:22:50 [gpu_worker.py:298] Available KV cache memory: 4.38 GiB
ERROR 10-08 10:22:50 [core.py:708] ValueError: To serve at least one request with the models's max seq len (32000), \
(7.81 GiB KV cache is needed, which is larger than the available KV cache memory (4.38 GiB). Based on the available \
memory, the estimated maximum model length is 17952. Try increasing `gpu_memory_utilization` or decreasing \
`max_model_len` when initializing the engine.
"""
PLAN = """memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb}
inference: {engine: vllm, version: "0.11.0", max_model_len: 32768, gpu_memory_utilization: SHARE}
"""
WIDE = Screen(width=400)


def _of(log: str, tmp_path: Path | None = None, share: float = 0.0, gpu: str | None = None) -> Diagnosis:
    plan = None
    if tmp_path is not None:
        plan = tmp_path / "plan.yaml"
        plan.write_text(PLAN.replace("SHARE", str(share)))
    return answer((log,), stdin=lambda size: b"", plan=None if plan is None else str(plan), gpu=gpu)


def test_the_log_gives_version_share_and_figures() -> None:
    """The log gives version share and figures."""
    found = _of(NO_BLOCKS)
    assert headline(found).startswith("vLLM 0.11.0 did not start.")
    values = {each.key: (each.value, each.line) for each in found.drafted}
    assert values["inference.version"] == ("0.11.0", 1)
    assert values["inference.gpu_memory_utilization"] == (0.2, 2)
    assert values["inference.max_model_len"] == (32768, 2)
    text = render_text(found, WIDE)
    for part in ("14.9889 GiB", "-1.31 GiB", "--gpu-memory-utilization` (now 0.2)", "--max-model-len` (now 32768)"):
        assert part in text
    assert as_data(found)["readings"] == []


def test_a_request_that_is_too_long_names_the_length_that_fits() -> None:
    """A request that is too long names the length that fits."""
    found = _of(TOO_LONG)
    text = render_text(found, WIDE)
    assert "Which tensor" not in text
    assert "training.objective" not in text
    assert "--max-model-len` (now 32000) to 17952 or less" in text
    assert as_data(found)["readings"] == []


@pytest.mark.slow
def test_the_engine_answers_a_plan_with_its_own_words(tmp_path: Path) -> None:
    """The engine answers a plan with its own words."""
    found = _of(NO_BLOCKS, tmp_path, 0.2)
    assert found.explained is not None
    first = found.explained.causes[0]
    assert first.id == "as-predicted"
    assert "vllm 0.11.0 does not start, as predicted: " in first.text
    assert any("inference.gpu_memory_utilization" in remedy.set for remedy in found.explained.remedies)
    assert {each.term for each in found.explained.differences} == {"weights", "left for the KV cache"}
    text = render_text(found, WIDE)
    assert "No single change" not in text
    assert "logits" not in text


@pytest.mark.slow
def test_a_plan_that_starts_is_judged_with_what_the_log_says(tmp_path: Path) -> None:
    """A plan that starts is judged with what the log says."""
    found = _of(NO_BLOCKS, tmp_path, 0.9)
    assert found.explained is not None
    first = found.explained.causes[0]
    assert first.changes == {"inference.gpu_memory_utilization": 0.2}
    assert "The plan differs from the log" in first.text
    assert any("inference.gpu_memory_utilization" in remedy.set for remedy in found.explained.remedies)


@pytest.mark.slow
def test_changes_that_the_run_refutes_are_not_advised(tmp_path: Path) -> None:
    """Changes that the run refutes are not advised."""
    found = _of(NO_BLOCKS.replace("'gpu_memory_utilization': 0.2", "'gpu_memory_utilization': 0.3"), tmp_path, 0.2)
    assert found.explained is not None
    assert found.explained.remedies == ()
    assert "less for the KV cache than computed" in found.explained.causes[0].text


def test_a_command_and_a_gpu_are_enough() -> None:
    """A command and a GPU are enough."""
    found = _of(TOO_LONG, gpu="h100-80gb")
    assert found.explained is not None
    assert found.explained.plan.estimate is not None
    assert found.explained.causes


def test_the_end_of_another_file_is_mentioned(tmp_path: Path) -> None:
    """The end of another file is mentioned."""
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text(NO_BLOCKS)
    two.write_text("OSError: [Errno 28] No space left on device\n")
    found = answer((str(one), str(two)), stdin=lambda size: b"")
    assert any(note.startswith("two.log, line 1: A disk is full") for note in found.notes)
