"""Over how many GPUs a config shards, and how many copies there are."""

from __future__ import annotations

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting
from memcheck.judge import Gate, check_file

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
        ("dp_replicate_size: 4\n", 2),
        ("dp_replicate_size: 2\ncontext_parallel_size: 2\n", 4),
        ("dp_replicate_size: 2\ntensor_parallel_size: 2\n", 2),
    ],
)
def test_axolotls_remaining_gpus_are_replicas_or_shards(lines: str, group: int | None) -> None:
    """Of a number of shards, or of replicas, that leaves some over (utils/distributed.py, _get_parallel_config_kwargs)."""
    found = read(AXOLOTL + lines).settings.get("parallelism.shard_group")
    assert (None if found is None else found.value) == group


def test_accelerates_shards_are_read() -> None:
    """Without a number of replicas beside them, too."""
    config = ACCELERATE + "parallelism_config: {parallelism_config_dp_shard_size: 4}\n"
    assert read(config, model="llama-3.1-8b").settings["parallelism.shard_group"].value == 4


SECOND = """\
model: Qwen/Qwen3-4B
model_class: llm
train_dataset: data.yaml
micro_batch_size: 1
cutoff_len: 2048
"""


@pytest.mark.parametrize(("lines", "group"), [("mp_shard_size: 8\n", 8), ("mp_replicate_size: 2\n", 4), ("", None)])
def test_llama_factorys_replicas_leave_shards(lines: str, group: int | None) -> None:
    """Its second generation (v1/accelerator/interface.py, ``mp_shard_size`` is the world over ``mp_replicate_size``)."""
    found = read(SECOND + "dist_config: {name: fsdp2}\n" + lines).settings.get("parallelism.shard_group")
    assert (None if found is None else found.value) == group


@pytest.mark.parametrize(
    ("lines", "recipe"),
    [
        ("dist_config: {name: fsdp2}\n", "bf16-mixed"),
        ("dist_config: {name: fsdp2}\nbf16: false\n", "fp32"),
        ("", "fp32"),
        ("peft_config: {name: freeze}\ndist_config: {name: fsdp2}\n", "bf16-mixed"),
    ],
)
def test_llama_factorys_second_generation_trains_fp32_weights(lines: str, recipe: str) -> None:
    """A model that is trained whole is made fp32 (v1/core/model_engine.py); FSDP2 alone casts it."""
    settings = read(SECOND + lines).settings
    assert settings["training.precision.recipe"].value == recipe
    assert "training.precision.params" not in settings
    if "freeze" in lines:
        assert settings["training.freeze"].value == ["embed", "head", "norm", "layers:0-34"]


@pytest.mark.parametrize(("lines", "reduced"), [("dist_config: {name: fsdp2}\n", "fp32"), ("", None)])
def test_its_own_policy_reduces_in_fp32(lines: str, reduced: str | None) -> None:
    """Accelerate's, which ``huggingface`` means, reduces in what it computes in."""
    found = read(SECOND + lines).settings.get("training.precision.reduce")
    assert (None if found is None else found.value) == reduced


@pytest.mark.parametrize(
    ("lines", "recipe", "params"),
    [("dist_config: {name: fsdp2}\n", "bf16-mixed", "bf16"), ("", "bf16-pure", None)],
)
def test_its_adapters_are_beside_a_base_as_it_was_saved(lines: str, recipe: str, params: str | None) -> None:
    """In 16 bits, while the adapters are fp32; held to traced steps of both (``memcheck verify``)."""
    settings = read(SECOND + "peft_config: {name: lora, r: 16, target_modules: all}\n" + lines).settings
    assert settings["training.precision.recipe"].value == recipe
    found = settings.get("training.precision.params")
    assert (None if found is None else found.value) == params


def test_more_shards_than_gpus_fail() -> None:
    """A recipe for two nodes does not run on one."""
    text = read(AXOLOTL + "dp_shard_size: 16\n").text
    (plan,), _ = check_file("plan.yaml", text.encode(), Gate())
    assert [each.code for each in plan.findings if each.severity == "error"] == ["MEM214"]
