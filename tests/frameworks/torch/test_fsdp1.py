"""FSDP1: one flat tensor for each unit's parameters, what its hooks and ``no_sync`` keep, and the steps it was traced in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drawn import predicted
from benchmarks.score import answer, resolved
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.flat_shard import flat_parameter_numel
from memcheck.job.types import TrainingJob
from memcheck.judge import Gate, check_file

GIB = 2**30


TRACED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("traced_fsdp1.json").read_text(encoding="utf-8"))
"""Steps of torch 2.13.0's FullyShardedDataParallel (``use_orig_params``) around small models of transformers 5.23.0: the
highest bytes of each instant, by ``memcheck verify``, of rank 0 or of the fullest one, where a part is frozen. Of 116
plans drawn at random all that can run. ``above``: instants that are predicted higher, and by how much: adapters are
gathered one by one, not with their layer, and a loop over tensors may find one in two rows."""


@pytest.mark.slow
def test_every_instant_of_a_traced_step() -> None:
    """Models so small that flat parameters and their gradients are most of the bytes."""
    for row in TRACED:
        found = predicted(row["plan"])["0"]
        for name, traced in row["instants"].items():
            assert -0.003 <= found[name] / traced - 1 <= row.get("above", {}).get(name, 0.01), name


def test_highest_instants_are_seldom_above() -> None:
    """No more than one plan in five is predicted higher by more than 1 % at any instant, and its peak in few of these."""
    wide = [row for row in TRACED if "above" in row]
    peaks = [row for row in wide if max(row["instants"], key=row["instants"].__getitem__) in row["above"]]
    assert len(wide) < len(TRACED) / 5
    assert len(peaks) < 5


def test_rows_of_wide_adapters_are_cast_twice() -> None:
    """55.78 GiB are published of adapters (fms-acceleration, a100_80gb_liger.csv, 2 GPUs, batch 16): peft casts rows to
    the fp32 that accelerate has made of the adapters, whatever they were made in, autocast back to the bf16 in which
    FSDP1 has gathered them, and each product saves a copy.
    """
    found = {
        dtype: answer(
            plan(
                lora={"rank": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "dtype": dtype},
                micro_batch_size=16,
                loss="fused-linear",
                options={"fsdp_version": 1},
            )
        ).allocated_bytes
        for dtype in ("fp32", "bf16")
    }
    assert found["fp32"] == found["bf16"]
    assert found["fp32"] / GIB == pytest.approx(55.78, rel=0.006)


NORMS = {
    "gpt2": (317_131_776, 307_740_160, 354_046_464),
    "opt-350m": (280_350_720, 262_012_928, 315_958_784),
}
"""Forward, loss and backward of GPT-2 and OPT-350m, three layers and 2,000 words, in transformers 5.23.0's Trainer and
accelerate 1.15.0 under FSDP1, on four ranks: ``python -m benchmarks.trainer_trace``."""


@pytest.mark.parametrize("model", NORMS)
def test_layer_norms_are_fp32_under_accelerates_autocast(model: str) -> None:
    """accelerate has autocast around FSDP1's bf16 parameters: a LayerNorm copies its input to fp32, and so is its output."""
    layers = "n_layer" if model == "gpt2" else "num_hidden_layers"
    found = predicted(
        {
            "memcheck": 1,
            "name": model,
            "model": {"name": model, "overrides": {layers: 3, "vocab_size": 2000}},
            "hardware": {"gpu": {"name": "any", "memory_gib": 10000}, "gpus_per_node": 4},
            "parallelism": {"zero_stage": 3},
            "training": {
                "framework": "huggingface",
                "micro_batch_size": 2,
                "sequence_length": 512,
                "attention": "sdpa",
                "options": {"fsdp_version": 1},
            },
        }
    )["0"]
    for name, traced in zip(("forward", "loss", "backward"), NORMS[model], strict=True):
        assert -0.001 <= found[name] / traced - 1 <= 0.008, name


@pytest.mark.parametrize("framework", ["huggingface", "pytorch"])
def test_offloaded_parameters_include_adapters(framework: str) -> None:
    """FSDP moves every parameter that it wraps to the host, what is trained among them."""
    sharded = plan(framework=framework, offload={"parameters": "cpu"}, options={"fsdp_version": 1})
    if framework == "pytorch":
        sharded["training"].pop("framework_version")
    found = answer(sharded).components_bytes
    assert not found.get("adapters")
    assert not found.get("parameters")


def plan(**training: object) -> dict[str, Any]:
    """Adapters of Mistral-7B's attention on two GPUs, as a published benchmark trained them."""
    return {
        "model": "mistral-7b-v0.1",
        "hardware": {"gpu": "a100-80gb", "gpus_per_node": 2},
        "parallelism": {"zero_stage": 3},
        "training": {
            "framework": "huggingface",
            "framework_version": "4.45",
            "method": "lora",
            "lora": {"rank": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "micro_batch_size": 4,
            "sequence_length": 4096,
            "precision": {"recipe": "bf16-mixed", "params": "bf16"},
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "activation_checkpointing": "full",
            "attention": "flash",
            **training,
        },
    }


def job(found: dict[str, Any]) -> TrainingJob:
    """The job of a plan that trains."""
    made, _, _ = resolved({"memcheck": 1, **found})
    assert isinstance(made, TrainingJob)
    return made


def test_frozen_units_keep_their_recomputed_inputs_and_gradients() -> None:
    """20.45 GiB are published (fms-acceleration, a100_80gb.csv, 2 GPUs, batch 4): more than 2 GiB lie in what is kept."""
    one, two = (
        answer(plan(precision="bf16-pure", options={"fsdp_version": version})).allocated_bytes for version in (1, 2)
    )
    assert one / GIB == pytest.approx(20.45, rel=0.002)
    assert one - two > 2 * GIB


def test_an_input_that_is_no_leaf_is_not_kept() -> None:
    """A checkpoint without ``use_reentrant`` recomputes from the graph's own tensor: FSDP2 has a flat buffer more."""
    recompute = {"mode": "full", "reentrant": False}
    one, two = (
        answer(plan(activation_checkpointing=recompute, options={"fsdp_version": version})).allocated_bytes
        for version in (1, 2)
    )
    assert 0 < two - one < GIB / 4


def test_trained_units_keep_nothing_more() -> None:
    """Full training has other hooks, on the flat parameters."""
    full: dict[str, object] = {"method": "full", "precision": "bf16-mixed"}
    one, two = (
        answer(_without_lora(plan(**full, options={"fsdp_version": version}))).allocated_bytes for version in (1, 2)
    )
    assert one == two


def test_waiting_gradients_are_in_the_compute_dtype() -> None:
    """Under ``no_sync`` FSDP1 leaves them as computed, FSDP2 in the dtype of the reduction: 2 and 4 bytes each."""
    precision = {"recipe": "bf16-mixed", "reduce": "fp32"}
    full: dict[str, object] = {"method": "full", "precision": precision, "gradient_accumulation_steps": 4}
    one, two = (
        answer(_without_lora(plan(**full, options={"fsdp_version": version}))).components_bytes["gradients"]
        for version in (1, 2)
    )
    assert two / one == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(("version", "fsdp"), [("4.45", 1), ("5.9", 1), ("5.10", 2), ("5.23", 2), (None, 2)])
def test_the_version_of_transformers_decides(version: str | None, fsdp: int) -> None:
    """Since 5.10 an ``fsdp_config`` without a version means FSDP2."""
    assert job(plan(framework_version=version) if version else _versionless()).fsdp_version == fsdp


def test_what_is_assumed_is_said() -> None:
    """Which FSDP, and how checkpoints run, are among the assumptions of a plan that states neither."""
    (result,), _ = check_file("plan.yaml", json.dumps({"memcheck": 1, **plan()}).encode(), Gate())
    said = {each.key: each.value for each in result.assumptions}
    assert said["training.options.fsdp_version"] == 1
    assert said["training.activation_checkpointing.reentrant"] is True


def test_there_is_no_third_version() -> None:
    """A number that is no version is an error at the option."""
    text = json.dumps({"memcheck": 1, **plan(options={"fsdp_version": 3})}).encode()
    (result,), _ = check_file("plan.yaml", text, Gate())
    (finding,) = [each for each in result.findings if each.code == "MEM406"]
    assert "takes 1 or 2" in finding.message


def _without_lora(found: dict[str, Any]) -> dict[str, Any]:
    found["training"].pop("lora")
    return found


def _versionless() -> dict[str, Any]:
    found = plan()
    found["training"].pop("framework_version")
    return found


SMALL = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
CASTS = (
    ("full", 2, {}, 23_169_024, 30_898_176),
    ("full", 1, {}, 30_873_600, 30_880_768),
    ("full", 2, {"freeze": ["embed", "layers:0-1"]}, 15_031_296, 19_502_080),
    ("full", 1, {"freeze": ["embed", "layers:0-1"]}, 21_019_648, 21_024_256),
    ("lora", 2, {"lora": {"rank": 64, "dtype": "bf16"}}, 8_467_968, 10_015_232),
    ("lora", 1, {"lora": {"rank": 64, "dtype": "bf16"}}, 9_990_656, 10_012_672),
)
"""Method, FSDP, what is frozen or adapted, and the bytes of a Llama of three layers that was loaded in bf16, at rest and in
the optimizer, in transformers 5.23.0's Trainer and accelerate 1.15.0 on four ranks: ``benchmarks.trainer_trace``."""


@pytest.mark.parametrize(("method", "version", "more", "rests", "steps"), CASTS)
def test_accelerate_casts_what_is_trained_to_fp32(
    method: str, version: int, more: dict[str, Any], rests: int, steps: int
) -> None:
    """Before FSDP shards it under mixed precision, whatever it was loaded in; what is frozen stays as it was loaded."""
    found = predicted(
        {
            "memcheck": 1,
            "name": "casts",
            "model": {
                "name": "llama-3.2-3b",
                "overrides": {"num_hidden_layers": 3, "intermediate_size": 1024, "vocab_size": 2000, **SMALL},
            },
            "hardware": {"gpu": {"name": "any", "memory_gib": 10000}, "gpus_per_node": 4},
            "parallelism": {"zero_stage": 3},
            "training": {
                "framework": "huggingface",
                "method": method,
                "micro_batch_size": 2,
                "sequence_length": 512,
                "precision": {"recipe": "bf16-mixed", "params": "bf16"},
                "options": {"fsdp_version": version},
                **more,
            },
        }
    )["0"]
    assert found["init"] / rests == pytest.approx(1, abs=0.001)
    assert found["optimizer"] / steps == pytest.approx(1, abs=0.004)


@pytest.mark.parametrize(
    ("numels", "item", "ways", "flat"), [((3, 5), 2, 4, 16), ((8, 5), 2, 1, 13), ((3, 3, 1), 4, 2, 10)]
)
def test_each_parameter_of_a_flat_tensor_is_aligned(numels: tuple[int, ...], item: int, ways: int, flat: int) -> None:
    """Each begins at a multiple of 16 bytes, and the whole is divided by the ranks (``_flat_param.py``)."""
    tensors = [LocalTensor(str(number), (numel,), True) for number, numel in enumerate(numels)]
    assert flat_parameter_numel(tensors, item, ways) == flat
