"""Experts that expert parallelism has dealt out, and that FSDP2 divides further: which dimension it cuts."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.data_parallel import fsdp_group
from memcheck.frameworks.torch.resident import shard_placement
from memcheck.job.recipe import FSDP2_BF16
from memcheck.job.types import TrainingJob
from tests.verify.plans import plan, subject

EXPERTS, WIDTH, HIDDEN, GPUS = 128, 768, 2048, 128
"""Qwen3-30B-A3B's."""


def job(framework: str, degree: int) -> TrainingJob:
    """Qwen3-30B-A3B on 128 GPUs, its experts dealt out to so many."""
    layout = {"zero_stage": 3, "expert": degree}
    name, _, version = framework.partition("@")
    stated = {"framework": name, **({"framework_version": version} if version else {})}
    found = subject(plan(gpus=GPUS, parallelism=layout, model="qwen3-30b-a3b", **stated)).job
    assert isinstance(found, TrainingJob)
    return found


def experts_here(degree: int) -> LocalTensor:
    """``gate_up_proj`` of one rank."""
    return LocalTensor(
        "mlp.experts.gate_up_proj", (EXPERTS // degree, 2 * WIDTH, HIDDEN), True, expert=True, matrix=True
    )


@pytest.mark.parametrize(
    ("framework", "degree", "gpus", "divided"),
    [
        ("torchtitan", 8, 128, 0),  # 16 shards of 16 experts
        ("torchtitan", 8, 256, 1),
        ("pytorch", 8, 128, 2),
        ("torchtitan", 1, 256, 1),
        ("torchtitan@0.2.2", 1, 256, 0),
        ("pytorch", 1, 256, 0),
        ("huggingface", 1, 256, 0),
    ],
)
def test_what_is_cut(framework: str, degree: int, gpus: int, divided: int) -> None:
    """torchtitan changes where there are more shards than experts, AutoModel wherever experts are dealt out."""
    tensor, ways = shard_placement(job(framework, degree), experts_here(degree), gpus)
    assert (tensor.sharded_dim, ways) == (divided, gpus // degree)


def test_adapters_and_dense_matrices_stay_as_they_are() -> None:
    """The shared experts' and attention's matrices are cut along their first dimension."""
    dense = LocalTensor("self_attn.q_proj.weight", (4096, HIDDEN), True, matrix=True)
    assert shard_placement(job("pytorch", 8), dense, 128) == (dense, 128)


@pytest.mark.parametrize(
    ("degree", "gpus", "traced"),
    [(1, 256, (1.38, 6.18, 3.61, 7.73, 1.83)), (8, 256, (1.38, 2.87, 3.61, 3.90, 1.83))],
)
def test_steps_of_torchtitan(degree: int, gpus: int, traced: tuple[float, ...]) -> None:
    """GiB of init, forward, loss, backward and optimizer of torchtitan's own step (b5bcd76c6), traced on torch 2.13."""
    layout = {"zero_stage": 3, "expert": degree}
    step = {"framework": "torchtitan", "precision": "bf16-mixed", "micro_batch_size": 1, "sequence_length": 1024}
    step |= {"optimizer": "adamw", "activation_checkpointing": "full"}
    found = subject(plan(gpus=gpus, parallelism=layout, model="qwen3-30b-a3b", **step)).estimate.ranks[0].instants
    predicted = {i.name: i.allocated_bytes / 2**30 for i in found}
    for name, truth in zip(("init", "forward", "loss", "backward", "optimizer"), traced, strict=True):
        assert truth - 0.01 <= predicted[name] <= 1.015 * truth


@pytest.mark.torch
@pytest.mark.parametrize(("framework", "gpus"), [("torchtitan", 128), ("torchtitan", 512), ("pytorch", 512)])
def test_a_group_is_as_large_as_fsdp2_makes_it(framework: str, gpus: int) -> None:
    """Bytes of shards and of gathers, by ``fully_shard`` itself on ranks that are not there."""
    pytest.importorskip("torch")
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    from memcheck.verify.trace.world import fake_ranks

    degree = 8
    held = experts_here(degree)
    ways = gpus // degree
    many = framework == "pytorch" or ways * degree > EXPERTS  # the conditions of the sources of `divided_over`
    shape = (held.shape[0], HIDDEN, 2 * WIDTH) if framework == "pytorch" else held.shape
    module: Any = torch.nn.Module()
    with torch.device("meta"):
        module.weight = torch.nn.Parameter(torch.empty(shape))
    with fake_ranks(ways, 0):
        mesh = torch.distributed.init_device_mesh("cpu", (ways,))
        fully_shard(module, mesh=mesh, shard_placement_fn=(lambda _: Shard(1)) if many else None)
        (parameter,) = module._get_fsdp_state()._fsdp_param_group.fsdp_params
        padded = parameter.padded_sharded_param_size.numel()
    own = fsdp_group(
        [shard_placement(job(framework, degree), held, gpus)],
        FSDP2_BF16,
        casts_every_tensor=True,
        accumulation_dtype="fp32",
    )
    assert own.sharded_gradients == 4 * padded
    assert own.all_gather_output == 2 * padded * ways
    assert own.copy_out_temporaries == (own.unsharded_params if many else 0)
