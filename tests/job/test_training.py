"""From the training section to the settings of one step."""

from __future__ import annotations

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job import training as t
from memcheck.job.lookup import Defaults, ResolutionError
from memcheck.job.types import Layout, TrainingJob
from memcheck.plan.types import ActivationCheckpointingSpec, LossSpec, OptimizerSpec, TrainingSpec
from tests.job.test_resolve import resolved

LAYOUT = Layout(gpus_per_node=8, data=8)


@pytest.mark.parametrize(
    ("stated", "steps"),
    [
        (TrainingSpec(), 1),
        (TrainingSpec(gradient_accumulation_steps=4), 4),
        (TrainingSpec(global_batch_size=64), 4),
        (TrainingSpec(global_batch_size=65), 5),
        (TrainingSpec(global_batch_size=1), 1),
    ],
)
def test_accumulation_makes_up_the_global_batch(stated: TrainingSpec, steps: int) -> None:
    """With 8 ranks of 2 sequences a global batch of 64 takes 4 passes; what does not divide is rounded up."""
    assert t.resolve_accumulation(stated, LAYOUT, 2, Defaults()) == steps


def test_the_sequence_length_has_no_default() -> None:
    """A plan without a sequence length cannot be estimated, and the error names the key."""
    with pytest.raises(ResolutionError) as error:
        t.resolve_batch(TrainingSpec(micro_batch_size=1), Defaults())
    assert "sequence_length" in error.value.message
    assert error.value.problems[0].kind == "missing"


@pytest.mark.parametrize(
    ("framework", "name", "implementation"),
    [
        ("pytorch", None, "foreach"),
        ("huggingface", None, "fused"),
        ("torchtitan", None, "fused"),
        ("megatron", "adam", "fused"),
        ("deepspeed", None, "fused"),
        ("huggingface", "adafactor", "for-loop"),
        ("pytorch", "muon", "for-loop"),
        ("pytorch", "adamw-8bit", "fused"),
    ],
)
def test_optimizer_implementation(framework: str, name: str | None, implementation: str) -> None:
    """Each stack's own choice of kernel is used where the plan does not state one."""
    found = t.resolve_optimizer(OptimizerSpec(name) if name else None, FRAMEWORKS[framework], Defaults())
    assert found.implementation == implementation
    assert found.name == (name or "adamw")


@pytest.mark.parametrize(
    ("framework", "tensor", "stated", "kind", "keep"),
    [
        ("pytorch", 1, None, "standard", True),
        ("huggingface", 1, None, "standard", False),
        ("torchtitan", 1, "standard", "standard", False),
        ("torchtitan", 4, "standard", "vocab-parallel", False),
        ("pytorch", 4, "standard", "standard", True),
        ("megatron", 1, None, "vocab-parallel", False),
        ("megatron", 4, "standard", "vocab-parallel", False),
        ("pytorch", 1, "fused-linear", "fused-linear", False),
        ("torchtitan", 4, "chunked", "chunked", False),
    ],
)
def test_loss(framework: str, tensor: int, stated: str | None, kind: str, keep: bool) -> None:
    """The standard loss is what the framework makes of it; only a plain loop keeps the logits."""
    layout = LAYOUT._replace(tensor=tensor)
    found = t.resolve_loss(LossSpec(stated) if stated else None, layout, FRAMEWORKS[framework], Defaults())
    assert (found.kind, found.keep_logits) == (kind, keep)
    assert found.upcast


def test_chunks_default_to_eight() -> None:
    """A chunked loss is cut into eight pieces unless the plan says otherwise."""
    chunked = t.resolve_loss(LossSpec("chunked"), LAYOUT, FRAMEWORKS["torchtitan"], Defaults())
    assert chunked.chunks == 8
    assert t.resolve_loss(LossSpec("chunked", chunks=4), LAYOUT, FRAMEWORKS["torchtitan"], Defaults()).chunks == 4


def test_recompute_mode() -> None:
    """Nothing is recomputed by default; listed modules and Megatron's granularity say what is."""

    def mode(stated: ActivationCheckpointingSpec | None, **options: object) -> str:
        return t.resolve_checkpointing(stated, None, FRAMEWORKS["megatron"], options, Defaults()).mode

    assert mode(None) == "none"
    assert mode(ActivationCheckpointingSpec(modules=("mlp",))) == "selective"
    assert mode(None, recompute_granularity="full") == "full"
    assert mode(ActivationCheckpointingSpec("none"), recompute_granularity="full") == "none"


@pytest.mark.parametrize(("version", "reentrant"), [("4.45", True), ("5.0", False), (None, False)])
def test_old_transformers_checkpoint_reentrantly(version: str | None, reentrant: bool) -> None:
    """Before 5, where nothing is said; what is said goes before it."""
    framework = FRAMEWORKS["huggingface"]
    found = t.resolve_checkpointing(ActivationCheckpointingSpec("full"), version, framework, {}, Defaults())
    assert found.reentrant is reentrant
    stated = ActivationCheckpointingSpec("full", reentrant=not reentrant)
    assert t.resolve_checkpointing(stated, version, framework, {}, Defaults()).reentrant is not reentrant


def test_adapters() -> None:
    """Adapters exist only with a method that trains them, in fp32 as PEFT keeps them."""
    plan = "model: llama-3.2-1b\nhardware: {{gpu: h100-80gb}}\ntraining: {{micro_batch_size: 1, sequence_length: 512, method: {}, lora: {{rank: 8}}}}\n"
    without, found = (resolved(plan.format(method)).job for method in ("full", "lora"))
    assert isinstance(without, TrainingJob)
    assert isinstance(found, TrainingJob)
    assert without.lora is None
    assert found.lora is not None
    assert (found.lora.rank, found.lora.target_modules, found.lora.dtype) == (8, "all-linear", "fp32")


def test_foreign_options_are_left_out() -> None:
    """The engine sees only options that the framework has."""
    options: dict[str, object] = {"reduce_bucket_size": 5, "made_up": 1}
    assert t.known_options(options, FRAMEWORKS["deepspeed"]) == {"reduce_bucket_size": 5}


def test_options_can_be_remembered() -> None:
    """Lists in options arrive as tuples, at any depth: replays are remembered under a job's options."""
    options: dict[str, object] = {"recompute_modules": ["mlp"], "pipeline_model_parallel_layout": [["embedding"], []]}
    known = t.known_options(options, FRAMEWORKS["megatron"])
    assert known == {"recompute_modules": ("mlp",), "pipeline_model_parallel_layout": (("embedding",), ())}
