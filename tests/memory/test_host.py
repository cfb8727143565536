"""Host memory of a node from loading to saving, stack by stack, to the byte."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Estimate
from memcheck.models.parameters import parameters_by_group
from memcheck.models.types import Architecture
from tests.frameworks.torch.load_and_save_plans import host_bytes, job_of, parameters, priced, resolved

P = parameters(resolved({"framework": "pytorch"}))
HF, SHARDED = {"framework": "huggingface"}, {"zero_stage": 3}


def moments(
    training: dict[str, object], parallelism: dict[str, object] | None = None, **more: object
) -> dict[str, int]:
    """Bytes by moment."""
    return host_bytes(priced(training, parallelism, **more))


@pytest.mark.parametrize("zero", [0, 3])
def test_every_process_holds_the_model_that_it_casts(zero: int) -> None:
    """transformers loads fp32 masters out of a bf16 checkpoint: a copy in each of eight processes, sharded or not."""
    assert moments({**HF, "precision": "bf16-mixed"}, {"zero_stage": zero})["load"] == 8 * P * 4


def test_one_process_is_not_several() -> None:
    """What makes the model is named as many times as it is there."""
    told = {
        gpus: {m.name: m.operation for m in priced(HF, hardware={"gpus_per_node": gpus}).host_moments}["load"]
        for gpus in (1, 8)
    }
    assert told == {1: "one process making the model", 8: "8 processes making the model"}


@pytest.mark.parametrize(
    ("precision", "weights"), [("bf16-pure", "bf16"), ("bf16-mixed", "fp32"), ("fp32", "fp32"), ("fp16-pure", "fp16")]
)
def test_a_model_of_the_files_dtype_is_mapped(precision: str, weights: str) -> None:
    """Pages of the files are shared and can be dropped: they are no memory of the processes."""
    training = {**HF, "precision": precision, "initialization": {"place": "host", "weights": weights}}
    assert "load" not in moments(training, SHARDED)


@pytest.mark.parametrize(
    ("precision", "weights", "item"), [("bf16-pure", "random", 2), ("fp16-pure", "bf16", 2), ("fp32", "random", 4)]
)
def test_what_is_made_or_cast_is_not_mapped(precision: str, weights: str, item: int) -> None:
    """Random weights and casts are the processes' own."""
    training = {**HF, "precision": precision, "initialization": {"place": "host", "weights": weights}}
    assert moments(training, SHARDED)["load"] == 8 * P * item


def test_stacked_experts_are_copies() -> None:
    """transformers stacks Mixtral's experts while it loads them; gpt-oss's files hold them as they are."""
    plan = {**HF, "precision": "bf16-pure"}
    found = resolved(plan, SHARDED, model="mixtral-8x7b")
    assert isinstance(found.job.architecture, Architecture)
    experts = parameters_by_group(found.job.architecture)["experts"]
    assert moments(plan, SHARDED, model="mixtral-8x7b")["load"] == 8 * experts * 2
    assert "load" not in moments(plan, SHARDED, model="gpt-oss-20b")


@pytest.mark.parametrize(("place", "copies"), [("host", 8), ("rank0", 1), ("device", 0), ("meta", 0)])
def test_the_place_decides_who_holds_it(place: str, copies: int) -> None:
    """Eight processes, one, or none: what is made on a GPU or gets its shards only takes no host memory."""
    found = moments({**HF, "precision": "bf16-mixed", "initialization": place}, SHARDED)
    assert found.get("load", 0) == copies * P * 4


@pytest.mark.parametrize(
    ("training", "parallelism", "place"),
    [
        (HF, {}, "host"),
        (HF, SHARDED, "host"),
        (HF, {"tensor": 2}, "meta"),
        ({**HF, "method": "qlora"}, SHARDED, "device"),
        ({"framework": "pytorch"}, {}, "host"),
        ({"framework": "pytorch"}, SHARDED, "meta"),
        ({"framework": "torchtitan"}, SHARDED, "meta"),
        ({"framework": "megatron"}, {"zero_stage": 1}, "device"),
        ({"framework": "deepspeed"}, {"zero_stage": 2}, "host"),
        ({"framework": "deepspeed"}, SHARDED, "meta"),
        ({"framework": "torchtune"}, {}, "device"),
        ({"framework": "torchtune"}, SHARDED, "meta"),
        ({"framework": "litgpt"}, SHARDED, "meta"),
    ],
)
def test_defaults_are_listed(training: dict[str, object], parallelism: dict[str, object], place: str) -> None:
    """Each framework's own way of making the model is among the assumptions, and so is its way of saving it."""
    found = resolved(training, parallelism)
    assumed = {item.key: item.value for item in found.assumptions}
    assert assumed["training.initialization.place"] == job_of(found).initialization.place == place
    assert assumed["training.checkpoint.state_dict"] == job_of(found).checkpoint.state_dict


def test_megatron_makes_a_ranks_part_on_the_host() -> None:
    """--use-cpu-initialization: each process its tensor-parallel part, no more than the model on a node."""
    training = {"framework": "megatron", "initialization": "host"}
    assert moments(training, {"zero_stage": 1, "tensor": 8})["load"] == pytest.approx(2 * P, rel=0.001)


def test_deepspeed_flattens_on_the_host_where_the_gpu_has_no_room() -> None:
    """ZeRO-2 flattens 8B parameters on an 80 GiB GPU itself, and on a 24 GiB one by way of tensors and flat buffer."""
    training, parallelism = {"framework": "deepspeed"}, {"zero_stage": 2}
    assert "init" not in moments(training, parallelism)
    assert moments(training, parallelism, hardware={"gpu": "rtx-4090"})["init"] == 8 * 2 * P * 2


def test_deepspeed_defragments_partitions_through_the_host() -> None:
    """ZeRO-3: every rank's partition of the 16-bit parameters at once, one model on a node of eight."""
    assert moments({"framework": "deepspeed"}, SHARDED)["init"] == pytest.approx(2 * P, rel=1e-6)


@pytest.mark.parametrize(
    ("checkpoint", "n_bytes"),
    [
        ("full", 8 * P),
        ({"state_dict": "full", "optimizer": False}, 4 * P),
        ("sharded", 8 * P),
        ({"state_dict": "sharded", "optimizer": False}, 4 * P),
        ("none", 0),
    ],
)
def test_trainer_saves_model_and_optimizer_in_turn(checkpoint: object, n_bytes: int) -> None:
    """Full: rank 0 gathers fp32 parameters, then both Adam moments; sharded: eight ranks of one node hold as much."""
    found = moments({**HF, "precision": "bf16-mixed", "checkpoint": checkpoint}, SHARDED)
    assert found.get("save", 0) == n_bytes


def test_sharded_parts_shrink_with_the_nodes_and_a_gathered_state_does_not() -> None:
    """Four nodes: a quarter of the sharded state on each, the whole full state on rank 0's."""
    many = {"hardware": {"nodes": 4}}
    plan = {**HF, "precision": "bf16-mixed"}
    assert moments({**plan, "checkpoint": "sharded"}, SHARDED, **many)["save"] == 2 * P
    assert moments({**plan, "checkpoint": "full"}, SHARDED, **many)["save"] == 8 * P


def test_a_hybrid_shard_group_keeps_its_own_copy() -> None:
    """Groups of one node each keep the whole state there."""
    plan = {**HF, "precision": "bf16-mixed", "checkpoint": "sharded"}
    assert moments(plan, {"zero_stage": 3, "shard_group": 8}, hardware={"nodes": 4})["save"] == 8 * P


@pytest.mark.parametrize(("model", "n_bytes"), [("llama-3.1-8b", 2 * P), ("llama-3.3-70b", 50 * 10**9)])
def test_safetensors_copies_a_file_at_a_time(model: str, n_bytes: int) -> None:
    """Without sharding the state dict is on the GPU; of each file of at most 50 GB all tensors are copied first."""
    assert moments({**HF, "precision": "bf16-pure"}, {}, model=model)["save"] == n_bytes


def test_torchtune_gathers_both_before_it_writes() -> None:
    """Parameters and Adam's moments in bf16, 6 bytes each parameter, on rank 0."""
    assert moments({"framework": "torchtune"}, SHARDED)["save"] == 6 * P


@pytest.mark.parametrize("framework", ["pytorch", "torchtitan"])
def test_asynchronous_shards_wait_on_the_host(framework: str) -> None:
    """async_save copies fp32 parameters and moments of all eight ranks; the synchronous one writes tensor by tensor."""
    plan: dict[str, object] = {"framework": framework, "precision": "bf16-mixed"}
    assert "save" not in moments({**plan, "checkpoint": "sharded"}, SHARDED)
    later = {"state_dict": "sharded", "asynchronous": True}
    assert moments({**plan, "checkpoint": later}, SHARDED)["save"] == 12 * P


def test_deepspeed_clones_the_state_dict_on_every_rank_below_stage_3() -> None:
    """Trainer.save_model asks every rank for the state dict, which is cloned to the host; stage 3 has none to clone."""
    assert moments({"framework": "deepspeed"}, {"zero_stage": 2})["save"] == 8 * 2 * P
    assert "save" not in moments({"framework": "deepspeed"}, SHARDED)


def test_deepspeed_gathers_where_the_option_says_so() -> None:
    """stage3_gather_16bit_weights_on_model_save: the 16-bit model on rank 0, and an assumption that says why."""
    training = {"framework": "deepspeed", "options": {"stage3_gather_16bit_weights_on_model_save": True}}
    assert moments(training, SHARDED)["save"] == 2 * P
    notes = {item.key: item.why for item in resolved(training, SHARDED).assumptions}
    assert "stage3_gather_16bit" in notes["training.checkpoint.state_dict"]


def test_megatron_stages_what_each_rank_writes() -> None:
    """torch_dist moves 2 + 4 + 8 bytes of each parameter to the host, divided over all ranks, saved at once or not."""
    found = moments({"framework": "megatron"}, {"zero_stage": 1, "tensor": 2}, hardware={"nodes": 4})
    assert found["save"] == pytest.approx(14 * P / 4, rel=1e-6)
    legacy = moments(
        {"framework": "megatron", "checkpoint": "full"}, {"zero_stage": 1, "tensor": 2}, hardware={"nodes": 4}
    )
    assert legacy["save"] == pytest.approx(12 * P, rel=1e-6)


def test_what_is_offloaded_is_there_when_a_checkpoint_is_saved() -> None:
    """A clone of the state dict comes on top of offloaded states; states that are on the host are not moved again."""
    offloaded: dict[str, object] = {"optimizer": {"name": "adamw", "offload": "cpu"}}
    engine = {**offloaded, "framework": "deepspeed", "options": {"pin_memory": False}}
    found = moments(engine, {"zero_stage": 2})
    assert 18 * P < found["step"] < 19.1 * P  # with a buffer of the largest tensor
    assert found["save"] == found["step"] + 8 * 2 * P
    megatron = moments({**offloaded, "framework": "megatron"}, {"zero_stage": 1})
    assert megatron["save"] - megatron["step"] == pytest.approx(2 * P, rel=1e-6)


def test_adapters_of_a_quantised_model_are_all_that_is_saved() -> None:
    """QLoRA: no full copy of the base is ever made on the host."""
    assert moments({**HF, "method": "qlora"}, {"zero_stage": 0}) == {}


def test_the_highest_moment_is_the_answer() -> None:
    """host_bytes_per_node and its components are those of the fullest moment."""
    answer: Estimate = priced({**HF, "precision": "bf16-mixed"}, SHARDED)
    assert answer.host_moment is not None
    assert answer.host_moment.name == "load"
    assert answer.host_bytes_per_node == 32 * P == sum(count for _, count in answer.host_components)


def test_nothing_is_made_up() -> None:
    """A plan that loads and saves nothing in host memory has no moment there."""
    assert moments({"framework": "pytorch", "initialization": "meta", "checkpoint": "none"}) == {}
