"""The step on real tensors of a small model, on the CPU: what is traced is a step that trains."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from memcheck.verify.build.step import StepParts, build_single  # noqa: E402
from memcheck.verify.compare import RefusedStepError  # noqa: E402
from memcheck.verify.measure import _fill  # noqa: E402
from memcheck.verify.observe import quiet, runnable  # noqa: E402
from tests.verify.plans import TINY, plan, subject  # noqa: E402
from tests.verify.running import traced  # noqa: E402


class Unwatched:
    """A watch that only knows the phase."""

    phase = ""

    def enter(self, phase: str) -> None:
        """Remember the phase."""
        self.phase = phase


class Log(Unwatched):
    """Remembers the phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def enter(self, phase: str) -> None:
        super().enter(phase)
        self.phases.append(phase)


def build(watch: Unwatched, **training: Any) -> StepParts:
    """A step on real CPU tensors with the same weights every time."""
    request = runnable(subject(plan(**{"precision": "fp32", **training})))
    torch.manual_seed(0)
    with quiet():
        parts = build_single(request.job, request.architecture, request.config, None, watch)
    torch.manual_seed(0)
    _fill(parts.inner)
    return parts


def updates(**training: Any) -> dict[str, Any]:
    """Every parameter after one step, of plain SGD unless another optimizer is named."""
    parts = build(Unwatched(), **{"optimizer": "sgd", **training})
    with quiet():
        parts.step()
    return {name: p.detach().clone() for name, p in parts.inner.named_parameters()}


def test_phases_come_in_the_order_of_a_step() -> None:
    """Each micro-batch has forward, loss and backward; the optimizer runs once."""
    watch = Log()
    parts = build(watch, gradient_accumulation_steps=2)
    parts.step()
    assert watch.phases == ["forward", "loss", "backward"] * 2 + ["optimizer"]


@pytest.mark.parametrize(
    "training",
    [
        {"loss": {"kind": "standard", "upcast": False}},
        {"loss": {"kind": "chunked", "chunks": 3}},
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": {"mode": "full", "reentrant": True}},
        {"attention": "eager"},
    ],
)
def test_variants_train_the_same(training: dict[str, Any]) -> None:
    """A loss in slices, a recompute or other attention code lead to the same weights."""
    expected = updates()
    for name, value in updates(**training).items():
        assert torch.allclose(value, expected[name], atol=2e-6), name


def test_every_weight_moves() -> None:
    """Nothing is left out of the optimizer."""
    before = {n: p.detach().clone() for n, p in build(Unwatched()).inner.named_parameters()}
    after = updates(optimizer="adamw")
    assert [n for n in before if torch.equal(before[n], after[n])] == []


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        (["embed"], {"model.embed_tokens.weight"}),
        (["head", "norm"], {"lm_head.weight", "model.norm.weight"}),
        (["layers:0-1"], {"model.layers.0."}),
        (["mlp.up_proj"], {"model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"}),
    ],
)
def test_frozen_parts(freeze: list[str], frozen: set[str]) -> None:
    """Only what the plan freezes gets no gradient."""
    model = build(Unwatched(), freeze=freeze).inner
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad is not any(name.startswith(f) for f in frozen), name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adapters(dtype: str) -> None:
    """Adapters alone are trained, in the dtype and with the rank that the plan states."""
    lora = {"rank": 4, "target_modules": ["q_proj", "down_proj"], "dtype": dtype}
    model = build(Unwatched(), method="lora", lora=lora, precision="bf16-pure").inner
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * TINY["num_hidden_layers"]
    assert all("lora_" in name for name in trained)
    assert {str(p.dtype) for p in trained.values()} == {{"fp32": "torch.float32", "bf16": "torch.bfloat16"}[dtype]}
    assert {min(p.shape) for p in trained.values()} == {4}
    frozen = next(p for n, p in model.named_parameters() if not p.requires_grad)
    assert frozen.dtype == torch.bfloat16


def test_tied_weights_are_one_parameter() -> None:
    """The head is the embedding, as in a model that transformers loads."""
    tied = {"architecture": {**TINY, "tie_word_embeddings": True}}
    request = runnable(subject(plan(model=tied)))
    model = build_single(request.job, request.architecture, request.config, None, Unwatched()).inner
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_muon_takes_the_matrices() -> None:
    """Embedding, head and norms stay with AdamW."""
    parts = build(Unwatched(), optimizer="muon")
    muon, adamw = parts.optimizers
    assert {p.dim() for group in muon.param_groups for p in group["params"]} == {2}
    count = sum(len(group["params"]) for optimizer in (muon, adamw) for group in optimizer.param_groups)
    assert count == len(list(parts.inner.parameters()))
    parts.step()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt9"}, "cannot read the configuration of gpt9"),
        ({**TINY, "num_hidden_layers": 3}, "builds llama with"),
        ({**TINY, "num_attention_heads": "four"}, "cannot read the configuration"),
    ],
)
def test_a_model_that_is_not_the_plans_is_refused(config: dict[str, Any], message: str) -> None:
    """An unknown type, a broken value, or another number of parameters than memcheck counts."""
    request = runnable(subject(plan()))
    with quiet(), pytest.raises(RefusedStepError, match=message):
        build_single(request.job, request.architecture, config, None, Unwatched())


def test_code_beside_a_checkpoint_is_never_run() -> None:
    """A configuration that names code of its own builds transformers' class all the same."""
    request = runnable(subject(plan()))
    config = {**request.config, "auto_map": {"AutoModelForCausalLM": "evil/repository--modeling.Model"}}
    model = build_single(request.job, request.architecture, config, None, Unwatched()).inner
    assert type(model).__module__.startswith("transformers.models.llama")


def test_what_a_library_refuses_is_told_by_its_name() -> None:
    """It is no defect, though the last frame is the one that hands a product through to PyTorch."""
    tiny = plan(gpus=2, parallelism={"zero_stage": 3}, framework="huggingface", optimizer="adafactor")
    with pytest.raises(RefusedStepError, match=r"transformers/optimization\.py would not run this step"):
        traced(tiny)


@pytest.mark.parametrize("kind", ["reward", "classification"])
def test_the_matrix_to_labels_is_trained_whole_beside_adapters(kind: str) -> None:
    """peft's task type of labels: `all-linear` does not reach it."""
    head: Any = kind if kind == "reward" else {"kind": kind, "labels": 2}
    parts = build(Unwatched(), head=head, method="lora", lora={"rank": 4, "target_modules": "all-linear"})
    trained = {n for n, p in parts.inner.named_parameters() if "score" in n and p.requires_grad}
    assert trained == {"base_model.model.score.modules_to_save.default.weight"}
