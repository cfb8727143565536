"""Device memory before and after the steps: where it exceeds them, and where it is a part of them."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Estimate
from memcheck.accounts.ranks import ResidentTensors
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.megatron.buffers import Counted, counted
from memcheck.frameworks.megatron.tensors import building
from memcheck.frameworks.torch.load_and_save import around
from memcheck.frameworks.torch.stack import training_ranks
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.models.types import Architecture
from tests.frameworks.torch.load_and_save_plans import job_of, parameters, priced, resolved

FSDP = {"zero_stage": 3}
RECOMPUTE = {"activation_checkpointing": "full"}


def instants(answer: Estimate) -> dict[str, int]:
    """Bytes by instant on the worst rank."""
    return {i.name: i.allocated_bytes for i in answer.ranks[0].instants}


def test_a_quantised_model_is_whole_on_every_gpu_before_it_is_sharded() -> None:
    """QLoRA of 70B under FSDP2: the 4-bit model with bf16 embeddings loads on each GPU, 37 GiB; a step needs 15.

    Accelerate holds its state dict until the last shard is made.
    """
    training = {"framework": "huggingface", "method": "qlora", **RECOMPUTE}
    answer = priced(training, FSDP, model="llama-3.3-70b")
    single = priced(
        {**training, "options": {"prepare_model_for_kbit_training": False}},
        {"data": 1},
        {"gpus_per_node": 1, "gpu": "b200"},
        model="llama-3.3-70b",
    )
    rests = next(i for i in single.ranks[0].instants if i.name == "init").components_bytes
    assert answer.instant == "load"
    load = answer.ranks[0].instants[0]
    shards = next(i for i in answer.ranks[0].instants if i.name == "init").components_bytes
    assert load.components_bytes == {name: rests[name] + shards[name] for name in ("parameters", "adapters")}
    assert answer.allocated_bytes > 2.5 * max(b for name, b in instants(answer).items() if name != "load")


@pytest.mark.parametrize(
    ("version", "model", "waits"),
    [
        ("5.3.0", "llama-3.1-8b", True),
        ("5.4", "llama-3.1-8b", False),
        ("4.57", "llama-3.1-8b", False),
        ("5.3.0", "unsloth/Meta-Llama-3.1-8B-bnb-4bit", False),
    ],
)
def test_matrices_wait_in_16_bits_to_be_quantised(version: str, model: str, waits: bool) -> None:
    """transformers 5.0 to 5.3 loads ahead: all of 8B in 16 bits, unless the files are quantised already."""
    training = {"framework": "huggingface", "framework_version": version, "method": "qlora", **RECOMPUTE}
    found = resolved(training, {"data": 1}, {"gpus_per_node": 1}, model=model)
    load = instants(estimate(found.job, found.gpu)).get("load", 0)
    assert (load == pytest.approx(2 * 8.03e9, rel=0.01)) == waits
    assert ("training.initialization.weights" in {each.key for each in found.assumptions}) == waits


def test_other_stacks_quantise_their_shards() -> None:
    """What is made on the meta device has no load instant."""
    answer = priced({"framework": "torchtune", "method": "qlora", **RECOMPUTE}, FSDP)
    assert "load" not in instants(answer)


@pytest.mark.parametrize(("place", "there"), [("device", True), ("host", False), ("rank0", False), ("meta", False)])
def test_only_a_model_made_on_the_gpu_is_whole_there(place: str, there: bool) -> None:
    """A plain loop may make the model where it likes."""
    answer = priced({"framework": "pytorch", "initialization": place}, FSDP)
    assert ("load" in instants(answer)) == there
    if there:
        found = resolved({"framework": "pytorch"}, FSDP)
        assert instants(answer)["load"] == pytest.approx(4 * parameters(found), rel=1e-4)


def test_a_traced_step_is_held_against_the_step() -> None:
    """Whoever runs a step sees neither loading nor saving: its prediction is without them."""
    checkpoint = {"state_dict": "full", "offload": "none"}
    answer = priced({"framework": "pytorch", "initialization": "device", "checkpoint": checkpoint}, FSDP)
    plain = priced({"framework": "pytorch"}, FSDP)
    assert answer.ranks[0].peak.name == "save"
    assert answer.ranks[0].step.instants == plain.ranks[0].instants


def test_without_shards_loading_is_a_part_of_every_step() -> None:
    """On one GPU and under DDP the model rests whole, with its states."""
    answer = priced({"framework": "pytorch", "initialization": "device"}, {}, {"gpu": "b200"})
    assert "load" not in instants(answer)


@pytest.mark.parametrize(("optimizer", "item"), [(True, 12), (False, 4)])
def test_a_state_dict_gathered_on_the_gpus_comes_on_top(optimizer: bool, item: int) -> None:
    """full_state_dict without cpu_offload: fp32 parameters, and both Adam moments, whole on every GPU beside shards."""
    checkpoint = {"state_dict": "full", "offload": "none", "optimizer": optimizer}
    answer = priced({"framework": "pytorch", "precision": "bf16-mixed", "checkpoint": checkpoint}, FSDP)
    count = parameters(resolved({"framework": "pytorch"}))
    assert instants(answer)["save"] == pytest.approx((12 / 8 + item) * count, rel=0.001)
    assert answer.instant == ("save" if optimizer else answer.instant)
    assert answer.instant in ("save", "backward")


def test_the_largest_tensors_of_loading_are_whole() -> None:
    """The list at the peak and the formulas show tensors before they are divided, and no states that are not there."""
    found = resolved({"framework": "huggingface", "method": "qlora", **RECOMPUTE}, FSDP, model="llama-3.3-70b")
    answer = estimate(found.job, found.gpu, found.overhead, inventory=True)
    assert answer.instant == "load"
    assert {group.component for group in answer.largest} <= {"parameters", "adapters"}
    assert sum(g.bytes for g in answer.largest if g.component == "parameters") <= answer.components_bytes["parameters"]
    assert answer.largest[0].bytes > answer.components_bytes["parameters"] // 8
    (formula,) = [f for f in answer.formulas if f.component == "parameters"]
    assert "ranks" not in formula.numbers


def test_nothing_is_asked_of_steps_that_need_no_more() -> None:
    """The instants of a step pass through untouched where the whole model is never there."""
    job = job_of(resolved({"framework": "torchtitan"}, FSDP))
    assert isinstance(job.architecture, Architecture)
    (rank,) = training_ranks(job, job.architecture)
    assert around(job, ResidentTensors(()), rank.instants) is rank.instants


def megatron(**changes: object) -> Estimate:
    """70B over 512 H100 with the distributed optimizer."""
    training = {"framework": "megatron", **RECOMPUTE, **changes}
    return priced(training, {"zero_stage": 1, "tensor": 8}, {"nodes": 64}, model="llama-3.3-70b")


def test_megatron_holds_parameters_twice_while_it_lays_out_buffers() -> None:
    """2 + 2 + 4 bytes of each parameter before there are master weights, against 6 + 12/64 at rest."""
    answer = megatron()
    rests = next(i for i in answer.ranks[0].instants if i.name == "optimizer").components_bytes
    assert answer.instant == "init"
    assert answer.operation == "copying parameters into DDP's buffers"
    assert answer.components_bytes["parameters"] == pytest.approx(2 * rests["parameters"], rel=0.001)
    assert answer.components_bytes["gradients"] == rests["gradients"]
    assert "optimizer_states" not in answer.components_bytes


def test_parameters_made_on_the_host_are_there_once() -> None:
    """With --use-cpu-initialization the copies come from host memory, and a step is the peak."""
    assert megatron(initialization="host").instant != "init"


def tensors(*numels: int, expert: bool = False) -> list[Counted]:
    """Trained vectors."""
    return counted([tuple(LocalTensor(f"t{n}", (n,), True, expert=expert) for n in numels)])


def megatron_job(**parallelism: object) -> TrainingJob:
    """Over eight ranks."""
    return job_of(resolved({"framework": "megatron"}, {"zero_stage": 1, **parallelism}))


def test_buffers_follow_one_another() -> None:
    """Two chunks: the first's buffers are full and its tensors gone when the second's are allocated.

    2 MiB elements each: 4 + 4 MiB made, then buffers of 4 + 8 MiB for the first beside both, then those of the second
    beside its own tensors: 2 x 12 + 4 MiB.
    """
    mib = 2**20
    chunk = tensors(2 * mib)
    assert building(megatron_job(), [chunk]) == {"parameters": 8 * mib, "gradients": 8 * mib}
    assert building(megatron_job(), [chunk, chunk]) == {"parameters": 12 * mib, "gradients": 16 * mib}


def test_the_fullest_moment_need_not_be_the_last() -> None:
    """A small last group leaves the moment at the large one before it."""
    mib = 2**20
    found = building(megatron_job(), [tensors(8 * mib), tensors(mib // 2)])
    assert found == {"parameters": 16 * mib + 16 * mib + mib, "gradients": 32 * mib}


def test_without_the_distributed_optimizer_parameters_stay_where_they_are() -> None:
    """DDP remaps parameters only for it."""
    assert building(megatron_job(zero_stage=0), [tensors(2**20)]) == {}
