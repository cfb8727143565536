"""What is run in place of what cannot be run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from memcheck.verify.compare import UntraceableError
from memcheck.verify.observe import runnable
from tests.verify.plans import TINY, plan, subject

MOE = {
    **TINY,
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}


without_torchtitan = pytest.mark.skipif(find_spec("torchtitan") is not None, reason="torchtitan runs itself")


def test_what_can_be_run_stays_as_it_is() -> None:
    """Nothing is replaced in a plain PyTorch plan, and the configuration is the plan's own."""
    found = subject(plan())
    request = runnable(found)
    assert request.replaced == ()
    assert request.subject is found
    assert request.config == TINY


@pytest.mark.parametrize(
    ("stated", "key", "instead"),
    [
        ({"attention": "flash"}, "training.attention", {"attention": "sdpa"}),
        ({"attention": "flex"}, "training.attention", {"attention": "sdpa"}),
        ({"compile": True}, "training.compile", {"compile": False}),
        ({"method": "qlora", "precision": "bf16-pure"}, "training.method", {"method": "lora"}),
        ({"activation_checkpointing": "selective"}, "training.activation_checkpointing", {}),
        ({"framework": "huggingface", "trainer": {"name": "trl", "version": "1.10"}}, "training.trainer", {}),
        ({"framework": "huggingface", "trainer": {"name": "trl", "version": "1.16"}}, "training.trainer", {}),
    ],
)
def test_one_replacement(stated: dict[str, Any], key: str, instead: dict[str, Any]) -> None:
    """It is named by its key, with a reason, and the job that is run has the other value."""
    request = runnable(subject(plan(**stated)))
    (item,) = request.replaced
    assert item.key == key
    assert item.why
    for name, value in instead.items():
        assert getattr(request.job, name) == value
    assert request.subject.estimate.allocated_bytes > 0


@pytest.mark.parametrize(
    ("name", "instead"),
    [("adamw-8bit", "adamw"), ("paged-adamw", "adamw"), ("lion", "sgd-momentum"), ("lion-8bit", "sgd-momentum")],
)
def test_optimizers_of_other_libraries(name: str, instead: str) -> None:
    """Torch's optimizer with as many states per parameter runs in their place."""
    assert runnable(subject(plan(optimizer=name))).job.optimizer.name == instead


def test_the_replaced_plan_is_priced_and_kept() -> None:
    """Prediction and record are of what is run."""
    found = subject(plan(optimizer="adamw-8bit"))
    request = runnable(found)
    assert request.subject.estimate.allocated_bytes > found.estimate.allocated_bytes
    assert request.subject.document.values["training"]["optimizer"]["name"] == "adamw"
    assert found.document.values["training"]["optimizer"] == "adamw-8bit"


@pytest.mark.parametrize(
    ("framework", "stage", "expected"),
    [
        ("deepspeed", 2, 3),
        ("deepspeed", 0, 0),
        ("megatron", 1, 1),
        pytest.param("torchtitan", 3, 3, marks=without_torchtitan),
    ],
)
def test_other_frameworks_run_as_plain_pytorch(framework: str, stage: int, expected: int) -> None:
    """Their engine is left out; sharding is the nearest that torch has, the recipe and the loss stay."""
    found = subject(plan(gpus=8, parallelism={"zero_stage": stage}, framework=framework, precision="bf16-mixed"))
    request = runnable(found)
    assert request.replaced[0].key == "training.framework"
    assert (request.job.framework.name, request.job.layout.zero_stage) == ("pytorch", expected)
    assert request.job.recipe.recipe == "bf16-mixed"
    assert request.job.clip_grad_norm == found.job.clip_grad_norm
    assert not request.job.loss.keep_logits


@pytest.mark.parametrize(
    ("stated", "key"),
    [
        ({"offload": {"parameters": "cpu"}}, "training.offload"),
        ({"optimizer": {"name": "adamw", "implementation": "fused", "offload": "cpu"}}, "training.optimizer.offload"),
        (
            {"activation_checkpointing": {"mode": "full", "offload": "cpu"}},
            "training.activation_checkpointing.offload",
        ),
    ],
)
def test_what_is_offloaded_stays_on_the_gpu(stated: dict[str, Any], key: str) -> None:
    """A trace knows one memory; everything else of the plan stays."""
    found = subject(plan(gpus=2, parallelism={"zero_stage": 3}, **stated))
    request = runnable(found)
    assert [item.key for item in request.replaced] == [key]
    job = request.job
    assert (job.optimizer.offload, job.parameter_offload, job.checkpointing.offload) == ("none", "none", "none")
    assert (job.optimizer.implementation, job.checkpointing.mode) == (
        found.job.optimizer.implementation,
        found.job.checkpointing.mode,
    )


def test_context_parallelism_becomes_shorter_sequences() -> None:
    """Each rank has its tokens, and the ranks are data-parallel ones."""
    found = plan(gpus=8, parallelism={"zero_stage": 3, "context": 4}, framework="torchtitan", precision="bf16-mixed")
    job = runnable(subject(found)).job
    assert (job.layout.context, job.layout.data, job.sequence_length) == (1, 8, 32)


@without_torchtitan
def test_experts_over_ranks_become_whole() -> None:
    """Plain PyTorch has every expert on every rank."""
    found = plan(
        gpus=8,
        parallelism={"zero_stage": 3, "expert": 4},
        framework="torchtitan",
        precision="bf16-mixed",
        model={"architecture": MOE},
    )
    assert runnable(subject(found)).job.layout.expert == 1


def test_replicas_of_a_split_model_become_one() -> None:
    """DDP around tensor parallelism is not run: one replica is, with the same micro-batches."""
    found = plan(gpus=8, parallelism={"tensor": 2}, gradient_accumulation_steps=3)
    job = runnable(subject(found)).job
    assert (job.layout.world_size, job.layout.data, job.gradient_accumulation_steps) == (2, 1, 3)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (plan(gpus=2, parallelism={"pipeline": 2, "pipeline_schedule": "zero-bubble"}), "zero-bubble"),
        (plan(gpus=4, parallelism={"pipeline": 2, "tensor": 2}), "inside a pipeline"),
        (plan(gpus=2, parallelism={"tensor": 2}, method="lora"), "adapters"),
        (plan(gpus=2, parallelism={"tensor": 2}, loss="chunked"), "chunked loss"),
        *(
            (plan(framework="huggingface", objective=name), f"loss of {name}")
            for name in ("dpo", "kto", "orpo", "reward")
        ),
    ],
)
def test_what_nothing_stands_for(found: dict[str, Any], message: str) -> None:
    """Exit code 2, with the reason and what to verify instead."""
    with pytest.raises(UntraceableError, match=message) as error:
        runnable(subject(found))
    assert error.value.exit_code == 2
    assert "--set" in error.value.help


def test_serving_is_not_a_step() -> None:
    """Verify runs training steps."""
    found = plan()
    del found["training"]
    found["inference"] = {"context_length": 128, "batch_size": 1}
    with pytest.raises(UntraceableError, match="inference"):
        runnable(subject(found))


def test_a_rough_model_cannot_be_built() -> None:
    """A parameter count is no model."""
    rough = {"rough": {"parameters": "1M", "layers": 2, "hidden_size": 64, "activation_multiplier": 10}}
    with pytest.raises(UntraceableError, match="too little"):
        runnable(subject(plan(model=rough)))


@pytest.mark.parametrize(
    ("stated", "installed", "replaced"),
    [(None, "2.13.0", []), ("2.14", "2.13.0", []), ("2.15", "2.13.0", ["training.torch_version"]), ("2.15", None, [])],
)
def test_the_pytorch_that_is_installed_is_priced(
    stated: str | None, installed: str | None, replaced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the plan says; a version that takes other amounts of memory is said to be replaced."""
    from memcheck.verify import observe as module

    monkeypatch.setattr(module, "versions", lambda: {"torch": installed} if installed else {})
    version = {"torch_version": stated} if stated else {}
    found = subject(plan(gpus=2, parallelism={"pipeline": 2}, gradient_accumulation_steps=4, **version))
    request = runnable(found)
    assert [item.key for item in request.replaced] == replaced
    assert request.job.torch == (("2.13",) if installed else ("2.15",))
