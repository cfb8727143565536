"""FSDP1's flat parameters that hold frozen weights and adapters: every weight in them gets a gradient."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drawn import predicted
from benchmarks.score import answer, resolved
from memcheck.judge import Gate, check_file

GIB = 2**30
TRACED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("traced_mixed_flat.json").read_text(encoding="utf-8")
)
"""Steps of torch 2.13.0, transformers 5.23.0 and peft 0.21.2 in which layers alone are units of FSDP1, by
``memcheck verify``: the highest bytes of each instant on the rank with most adapters. ``above``: instants that are
predicted higher, and by how much, where the head's adapters are on another rank than most of the layers'."""


@pytest.mark.parametrize("row", TRACED, ids=[row["id"] for row in TRACED])
def test_every_instant_of_a_traced_step(row: dict[str, Any]) -> None:
    """Models so small that flat gradients are most of the bytes; never too low."""
    found = predicted(row["plan"])["0"]
    for name, traced in row["instants"].items():
        assert -0.001 <= found[name] / traced - 1 <= row.get("above", {}).get(name, 0.01), name


def litgpt(gpus: int, gpu: str = "a100-80gb", **training: object) -> dict[str, Any]:
    """Llama-2-13B with adapters of LitGPT's defaults."""
    return {
        "memcheck": 1,
        "model": "llama-2-13b",
        "hardware": {"gpu": gpu, "gpus_per_node": gpus},
        "parallelism": {"zero_stage": 3 if gpus > 1 else 0},
        "training": {
            "framework": "litgpt",
            "method": "lora",
            "micro_batch_size": 1,
            "sequence_length": 512,
            "gradient_accumulation_steps": 16,
            "precision": "bf16-pure",
            "activation_checkpointing": "full",
            **training,
        },
    }


def test_litgpt_keeps_gradients_of_the_whole_model() -> None:
    """33.1 GiB were read of 13B on four GPUs: a quarter of the model, and gradients of all of it under ``no_sync``."""
    found = answer(litgpt(4))
    assert found.allocated_bytes / GIB == pytest.approx(33.1, rel=0.015)
    assert found.components_bytes["gradients"] == pytest.approx(2 * 13.0e9 + 0.66e9, rel=0.02)


def test_a_reduction_leaves_a_share_of_them() -> None:
    """One micro-batch a step reduces at once: a layer's gradients are whole, the others a quarter."""
    several, one = (answer(litgpt(4, gradient_accumulation_steps=n)) for n in (16, 1))
    assert one.components_bytes["gradients"] < 0.35 * several.components_bytes["gradients"]
    assert one.components_bytes["gradients"] > 0.2 * several.components_bytes["gradients"]


def test_two_small_cards_are_refused() -> None:
    """It died on two GPUs of 40 GB, where a model without these gradients needs less than half of the card."""
    text = json.dumps(litgpt(2, "a100-40gb")).encode()
    (result,), _ = check_file("plan.yaml", text, Gate())
    assert [f.code for f in result.findings if f.code in ("MEM101", "MEM102")] == ["MEM101"]
    (said,) = (f.message for f in result.findings if f.code == "MEM101")
    assert "fsdp_version" not in said, "LitGPT's scripts have no such choice"


def test_states_are_those_of_adapters_alone() -> None:
    """The optimizer steps on adapters: what else gets a gradient has no states."""
    job, _, _ = resolved(litgpt(4))
    found = answer(litgpt(4))
    trained = 40 * 2 * (8 * 5120 + 5120 * 8)
    assert job is not None
    assert found.components_bytes["optimizer_states"] < 1.02 * 4 * trained


def test_quantised_models_stay_on_one_gpu() -> None:
    """LitGPT's scripts raise NotImplementedError on several."""
    text = json.dumps(litgpt(4, method="qlora")).encode()
    (result,), _ = check_file("plan.yaml", text, Gate())
    assert any("refuse to train a quantised model" in f.message for f in result.findings)


def trainer(version: str, **options: object) -> dict[str, Any]:
    """Adapters under transformers' Trainer and FSDP1."""
    plan = litgpt(4)
    plan["training"] |= {
        "framework": "huggingface", "framework_version": version, "precision": "bf16-pure",
        "lora": {"dtype": "bf16"}, "options": {"fsdp_version": 1, **options},
    }  # fmt: skip
    return plan


@pytest.mark.parametrize(("version", "mixes"), [("4.38.2", True), ("4.39.0", False), ("5.9", False)])
def test_trainer_wraps_adapters_since_4_39(version: str, mixes: bool) -> None:
    """Before, layers alone are units; a plan may say which."""
    found = {None: answer(trainer(version)).allocated_bytes}
    found |= {word: answer(trainer(version, wraps_adapters=word)).allocated_bytes for word in (True, False)}
    assert found[None] == found[not mixes]
    assert found[False] > found[True] + 2 * 12e9


def test_the_default_is_listed() -> None:
    """Whether adapters are units is an assumption, where FSDP1 wraps them and the plan leaves it out."""
    for version, value in (("4.38", False), ("4.50", True)):
        (result,), _ = check_file("plan.yaml", json.dumps(trainer(version)).encode(), Gate())
        said = {a.key: a.value for a in result.assumptions}
        assert said["training.options.wraps_adapters"] is value
    (result,), _ = check_file("plan.yaml", json.dumps(trainer("4.50", wraps_adapters=True)).encode(), Gate())
    assert "training.options.wraps_adapters" not in {a.key for a in result.assumptions}


FLAT = """
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)
        self.a, self.b = nn.Linear(64, 4, bias=False), nn.Linear(4, 256, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x) + self.b(self.a(x))))

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
model = nn.Sequential(Block(), Block())
for name, parameter in model.named_parameters():
    parameter.requires_grad = name.split(".")[1] in ("a", "b")
wrapped = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu"))
for last in (False, True):
    with nullcontext() if last else wrapped.no_sync():
        wrapped(torch.ones(2, 64)).sum().backward()
    flat = wrapped.module[0]._handle.flat_param
    print(flat._unpadded_unsharded_size.numel(), flat.grad.numel(), flush=True)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_pytorch_itself() -> None:
    """What frozen weights beside adapters get on a rank of two: all of it under ``no_sync``, half once it is reduced.

    Two real processes over gloo say the same.
    """
    pytest.importorskip("torch")
    made = subprocess.run([sys.executable, "-c", FLAT], capture_output=True, text=True, check=True, timeout=600)
    lines = [tuple(map(int, line.split())) for line in made.stdout.splitlines()]
    whole = 2 * 64 * 256 + 4 * 64 + 4 * 256
    assert lines == [(whole, whole), (whole, whole // 2)]
