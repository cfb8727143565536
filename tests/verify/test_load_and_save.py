"""What real processes hold while they load, build and gather models, against the model of these moments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status"),
]

from tests.frameworks.torch.load_and_save_plans import host_bytes, parameters, priced, resolved  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
DENSE = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 8192,
    "tie_word_embeddings": False,
}
MIXTURE = {
    **DENSE,
    "model_type": "mixtral",
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
NOISE = 12 * 2**20
"""Bytes that Python and the libraries may allocate on the way, whatever the model."""


def saved(config: dict[str, Any], folder: Path) -> str:
    """A checkpoint in bf16 with random weights, in files of up to 40 MB."""
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="40MB")
    return str(folder)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    """84 million parameters."""
    return saved(DENSE, tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight experts in each of two layers."""
    return saved(MIXTURE, tmp_path_factory.mktemp("mixture"))


def measured(*arguments: str) -> dict[str, Any]:
    """What one process saw."""
    return finished(started(*arguments))


def together(what: str, *arguments: str, folder: Path) -> list[dict[str, Any]]:
    """What two processes saw that meet in a file."""
    running = [started(what, *arguments, str(rank), str(folder / "meeting")) for rank in (0, 1)]
    return [finished(process) for process in running]


def started(*arguments: str) -> subprocess.Popen[str]:
    """A process of tests.verify.measured, whose malloc returns tensors of a megabyte as it returns large ones."""
    command = [sys.executable, "-m", "tests.verify.measured", *arguments]
    small = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    return subprocess.Popen(command, cwd=ROOT, env=small, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it printed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def predicted(config: dict[str, Any], precision: str) -> int:
    """Bytes of one process that loads the model."""
    training = {"framework": "huggingface", "precision": precision}
    answer = priced(training, {}, {"gpus_per_node": 1}, model={"architecture": config})
    return host_bytes(answer).get("load", 0)


def test_a_cast_is_memory_of_the_process(dense: str) -> None:
    """bf16 files loaded in fp32: 4 bytes a parameter are anonymous, as predicted."""
    seen = measured("load", dense, "float32")
    assert seen["anonymous"] == pytest.approx(predicted(DENSE, "bf16-mixed"), abs=NOISE)
    assert predicted(DENSE, "bf16-mixed") == 4 * seen["parameters"]


def test_the_files_dtype_is_mapped(dense: str) -> None:
    """bf16 files loaded in bf16: nothing is anonymous, before and after every page was read; the pages are the files'."""
    seen = measured("load", dense, "bfloat16")
    assert predicted(DENSE, "bf16-pure") == 0
    assert seen["anonymous"] < NOISE
    assert seen["anonymous_read"] < NOISE
    assert seen["mapped_read"] > 0.9 * 2 * seen["parameters"]


def test_stacked_experts_are_memory_of_the_process(mixture: str) -> None:
    """A mixture's experts are anonymous even in the files' dtype, the rest of it is mapped."""
    seen = measured("load", mixture, "bfloat16")
    expected = predicted(MIXTURE, "bf16-pure")
    assert expected == 2 * seen["experts"]
    assert seen["anonymous"] == pytest.approx(expected, abs=NOISE)


def test_ram_efficient_loading_loads_on_every_rank(dense: str, tmp_path: Path) -> None:
    """With accelerate's variables set, each of two processes of a node still holds the whole model in fp32."""
    for seen in together("load_with_fsdp", dense, "float32", folder=tmp_path):
        assert seen["enabled"]
        assert seen["anonymous"] == pytest.approx(4 * seen["parameters"], abs=NOISE)


def test_a_full_state_dict_is_gathered_on_rank_0_or_on_all(tmp_path: Path) -> None:
    """FSDP2 over two ranks: shards out of the meta device; all fp32 bytes on rank 0 with cpu_offload, on both without."""
    first, second = together("gather", folder=tmp_path)
    whole = 4 * first["parameters"]
    assert first["sharded"] == second["sharded"] == whole // 2
    assert (first["offloaded"], second["offloaded"]) == (whole, 0)
    assert (first["offloaded_states"], second["offloaded_states"]) == (2 * whole, 0)
    assert (first["kept"], second["kept"]) == (whole, whole)
    assert (first["kept_states"], second["kept_states"]) == (2 * whole, 2 * whole)


def test_the_gathers_are_those_that_are_predicted() -> None:
    """The same in the model: 12 bytes a parameter on rank 0's node, or on every GPU beside the shards."""
    plan = {"framework": "pytorch", "precision": "bf16-mixed"}
    count = parameters(resolved(plan))
    offloaded = priced({**plan, "checkpoint": "full"}, {"zero_stage": 3})
    assert host_bytes(offloaded)["save"] == 12 * count
    kept = priced({**plan, "checkpoint": {"state_dict": "full", "offload": "none"}}, {"zero_stage": 3})
    saving = next(i for i in kept.ranks[0].instants if i.name == "save")
    assert saving.allocated_bytes == pytest.approx(12 * count + 12 * count / 8, rel=0.001)


def test_asynchronous_checkpoints_copy_first(tmp_path: Path) -> None:
    """async_save's stager copies every byte of a rank's state, whatever becomes of the original."""
    for seen in together("stage", folder=tmp_path):
        assert seen["staged"] == seen["state"]
        assert not seen["shared"]
