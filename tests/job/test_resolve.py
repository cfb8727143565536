"""A whole plan becomes a whole job, or says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.models.types import Architecture, Rough
from memcheck.plan.finding import Finding
from memcheck.plan.read import load_documents, read_plan

HEAD = "memcheck: 1\n"
TRAIN = "training: {micro_batch_size: 1, sequence_length: 4096}\n"


def resolved(text: str, base_dir: str = ".") -> Resolved:
    """What a plan resolves to."""
    (document,) = load_documents("plan.yaml", (HEAD + text).encode())
    plan, findings = read_plan(document)
    assert plan is not None, [f.message for f in findings if isinstance(f, Finding)]
    return resolve(plan, FRAMEWORKS, base_dir=base_dir)


def problems(text: str, base_dir: str = ".") -> list[tuple[str, str]]:
    """The kinds and pointers of what keeps a plan from being resolved."""
    with pytest.raises(ResolutionError) as error:
        resolved(text, base_dir)
    assert all(p.message for p in error.value.problems)
    return [(p.kind, p.pointer) for p in error.value.problems]


def test_a_short_plan_becomes_a_whole_job() -> None:
    """Three lines are enough; everything else is a default that is listed."""
    found = resolved("model: llama-3.1-8b\nhardware: {gpu: h100-80gb}\n" + TRAIN)
    job = found.job
    assert isinstance(job, TrainingJob)
    assert isinstance(job.architecture, Architecture)
    assert (job.framework.name, job.recipe.recipe, job.optimizer.name) == ("huggingface", "bf16-mixed", "adamw")
    keys = [a.key for a in found.assumptions]
    assert len(keys) == len(set(keys))
    assert {"training.framework", "training.precision.recipe", "training.attention", "training.method"} <= set(keys)


def test_what_is_stated_is_not_assumed() -> None:
    """A key that the plan writes never appears among the assumptions."""
    found = resolved(
        "model: llama-3.1-8b\nhardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 1}\nparallelism: {zero_stage: 3}\n"
        "training: {framework: torchtitan, method: full, micro_batch_size: 1, sequence_length: 4096, attention: sdpa,\n"
        "  precision: bf16-mixed, optimizer: adamw, activation_checkpointing: full, clip_grad_norm: true}\n"
    )
    stated = {"training.framework", "training.method", "training.attention", "training.precision.recipe"}
    stated |= {"training.optimizer.name", "training.activation_checkpointing.mode", "training.clip_grad_norm"}
    stated |= {"hardware.gpus_per_node", "hardware.nodes", "parallelism.zero_stage"}
    assert stated.isdisjoint(a.key for a in found.assumptions)


def test_every_assumption_has_a_reason() -> None:
    """An assumption without a reason would be a guess."""
    found = resolved("model: mixtral-8x7b\nhardware: {gpu: h100-80gb, gpus_per_node: 8}\n" + TRAIN)
    assert all(a.why for a in found.assumptions)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: llama-9\nhardware: {gpu: h100-80gb}\n", [("model", "/model")]),
        ("model: {name: llama-9, overrides: {x: 1}}\nhardware: {gpu: h100-80gb}\n", [("model", "/model/name")]),
        ("model: llama-3.1-8b\nhardware: {gpu: h999}\n", [("gpu", "/hardware/gpu")]),
        ("model: llama-9\nhardware: {gpu: h999}\n", [("model", "/model"), ("gpu", "/hardware/gpu")]),
        ("model: {config: ./none.json}\nhardware: {gpu: h200}\n", [("config", "/model/config")]),
        (
            "model: {architecture: {model_type: new-thing}}\nhardware: {gpu: h200}\n",
            [("architecture", "/model/architecture/model_type")],
        ),
        (
            "model: {name: llama-3.1-8b, overrides: {hidden_size: wide}}\nhardware: {gpu: h200}\n",
            [("config-key", "/model/overrides/hidden_size")],
        ),
    ],
)
def test_unresolvable_plans_name_the_key(text: str, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    """Every reason is reported at once, each with the key that is responsible."""
    assert problems(text + TRAIN, str(tmp_path)) == expected


def test_an_unknown_gpu_with_memory_is_fine() -> None:
    """The catalog need not know a GPU whose figures the plan gives."""
    found = resolved("model: llama-3.1-8b\nhardware: {gpu: {name: mi455x, memory_gib: 431.2}}\n" + TRAIN)
    assert found.gpu.name == "mi455x"
    assert found.gpu.memory_bytes == round(431.2 * 2**30)
    assert not found.gpu.from_catalog


def test_stated_figures_go_before_the_catalog() -> None:
    """A plan may correct a catalog GPU; what it does not state stays."""
    found = resolved("model: llama-3.1-8b\nhardware: {gpu: {name: h100-80gb, memory_gib: 70}}\n" + TRAIN)
    assert found.gpu.memory_bytes == 70 * 2**30
    assert found.gpu.arch == "sm_90"
    assert not found.gpu.from_catalog


def test_a_config_file_is_read_beside_the_plan(tmp_path: Path) -> None:
    """A relative config path starts at the plan."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "tie_word_embeddings": true}'
    )
    found = resolved("model: {config: ./config.json}\nhardware: {gpu: h200}\n" + TRAIN, str(tmp_path))
    assert isinstance(found.job.architecture, Architecture)
    assert found.job.architecture.num_layers == 2


def test_a_rough_model_stays_rough() -> None:
    """A model of which only sizes are known has no architecture, and can still be estimated."""
    rough = "model: {rough: {parameters: 700M, layers: 32, hidden_size: 4096, activation_multiplier: 10}}\n"
    found = resolved(rough + "hardware: {gpu: a100-80gb}\n" + TRAIN)
    assert found.job.architecture == Rough(700_000_000, 32, 4096, 10, None)


def test_inference() -> None:
    """Serving resolves to weights, a cache and tensor ranks."""
    found = resolved(
        "model: llama-3.1-8b\nhardware: {gpu: h100-80gb, gpus_per_node: 2}\nparallelism: {tensor: 2}\n"
        "inference: {batch_size: 8, context_length: 32768}\n"
    )
    job = found.job
    assert isinstance(job, InferenceJob)
    assert (job.batch_size, job.context_length, job.weights, job.kv_cache) == (8, 32768, "bf16", "bf16")
    assert (job.layout.tensor, job.layout.data) == (2, 1)


@pytest.mark.parametrize(
    ("policy", "kind", "fraction"), [("", "modeled", 0.0), ("policy: {overhead: 10%}\n", "flat", 0.1)]
)
def test_overhead(policy: str, kind: str, fraction: float) -> None:
    """Overhead is itemised unless the policy gives a flat fraction."""
    found = resolved("model: llama-3.1-8b\nhardware: {gpu: h100-80gb}\n" + TRAIN + policy)
    assert (found.overhead.kind, found.overhead.fraction) == (kind, fraction)


def test_a_wrong_layout_still_resolves() -> None:
    """Degrees that do not fit are left to the rules, which can then report all of them."""
    found = resolved(
        "model: llama-3.1-8b\nhardware: {gpu: h100-80gb, gpus_per_node: 8}\n"
        "parallelism: {tensor: 3, pipeline: 7, expert: 5}\n" + TRAIN
    )
    assert found.job.layout.data == 1


@pytest.mark.parametrize(
    ("model", "package"), [("nemotron-h-8b", "mamba-ssm"), ("qwen3-next-80b-a3b", "flash-linear-attention")]
)
def test_kernels_that_layers_are_priced_with_are_assumed(model: str, package: str) -> None:
    """Training says that a package is taken to be installed; serving and other models have nothing to say."""
    head = "hardware: {gpu: h100-80gb}\n"
    said = [a.value for a in resolved(f"model: {model}\n{head}{TRAIN}").assumptions if a.key == "model"]
    assert f"{package} is installed" in said
    serving = resolved(f"model: {model}\n{head}inference: {{batch_size: 1, context_length: 4096}}\n")
    assert not any(a.key == "model" for a in serving.assumptions)
    assert not any(a.key == "model" for a in resolved(f"model: llama-3.1-8b\n{head}{TRAIN}").assumptions)


PREFERENCE = """\
model: llama-3.2-1b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism: {{zero_stage: 3}}
training:
  framework: huggingface
  micro_batch_size: 1
  sequence_length: 128
  trainer: {{name: trl, version: 0.29.1}}
  objective: dpo
  options: {{fsdp_version: {fsdp}}}
"""


@pytest.mark.parametrize(("version", "wide"), [(1, True), (2, False)])
def test_outputs_are_wide_where_the_forward_is_wrapped(version: int, wide: bool) -> None:
    """Accelerate copies outputs to fp32 under FSDP1, as without sharding; FSDP2's models skip that (accelerator.py)."""
    job = resolved(PREFERENCE.format(fsdp=version)).job
    assert isinstance(job, TrainingJob)
    assert job.objective.fp32_outputs is wide
