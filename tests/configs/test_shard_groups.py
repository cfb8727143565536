"""Over how many GPUs a config shards, and how many copies there are."""

from __future__ import annotations

import pytest

from memcheck.check import Gate, check_file
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch_fused
bf16: true
fsdp_version: 2
fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, reshard_after_forward: true}
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}
"""
GPUS: dict[str, object] = {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": 8}


def read(text: str, **more: object) -> Imported:
    """What a config says, on one node of eight GPUs."""
    settings = {key: ReadSetting(value, "test") for key, value in {**GPUS, **more}.items()}
    return import_config("a.yaml", text.encode(), settings)


@pytest.mark.parametrize(
    ("lines", "group"),
    [
        ("", None),
        ("dp_shard_size: 4\n", 4),
        ("dp_shard_size: 4\ncontext_parallel_size: 2\n", 8),
        ("dp_shard_size: 4\ndp_replicate_size: 2\n", 4),
        ("dp_replicate_size: 4\n", 1),
    ],
)
def test_axolotls_remaining_gpus_are_replicas(lines: str, group: int | None) -> None:
    """Of a ``dp_shard_size`` that leaves some over (utils/distributed.py, _get_parallel_config_kwargs)."""
    found = read(AXOLOTL + lines).settings.get("parallelism.shard_group")
    assert (None if found is None else found.value) == group


def test_accelerates_shards_are_read() -> None:
    """Without a number of replicas beside them, too."""
    config = ACCELERATE + "parallelism_config: {parallelism_config_dp_shard_size: 4}\n"
    assert read(config, model="llama-3.1-8b").settings["parallelism.shard_group"].value == 4


def test_more_shards_than_gpus_fail() -> None:
    """A recipe for two nodes does not run on one."""
    text = read(AXOLOTL + "dp_shard_size: 16\n").text
    (plan,), _ = check_file("plan.yaml", text.encode(), Gate())
    assert [each.code for each in plan.findings if each.severity == "error"] == ["MEM214"]
