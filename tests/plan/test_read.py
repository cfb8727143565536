from __future__ import annotations

import subprocess
import sys

import pytest

from memcheck.plan.read import load_documents, parse_count, parse_fraction, read_plan
from memcheck.plan.types import (
    ActivationCheckpointingSpec,
    GpuSpec,
    HardwareSpec,
    InferenceSpec,
    LoraSpec,
    LossSpec,
    ModelSpec,
    OffloadSpec,
    OptimizerSpec,
    ParallelismSpec,
    Plan,
    PolicySpec,
    PrecisionSpec,
    RoughSpec,
    TrainingSpec,
)
from tests.plan.samples import ARCHITECTURE, FULL, SERVING, SMALL, changed, read


def typed(text: str) -> Plan:
    plan, findings = read(text)
    assert findings == []
    assert plan is not None
    return plan


def test_a_small_plan():
    """What the plan does not state is None; defaults are chosen later, and listed."""
    assert typed(SMALL) == Plan(
        memcheck=1,
        model=ModelSpec(name="llama-3.1-8b"),
        hardware=HardwareSpec(gpu=GpuSpec("h100-80gb")),
        training=TrainingSpec(micro_batch_size=1, sequence_length=4096),
    )


def test_a_full_plan():
    """Every key arrives in its field, in its own type."""
    assert typed(FULL) == Plan(
        memcheck=1,
        name="llama-3.1-8b-docs-sft",
        description="Fine-tune on internal docs, 8k context.",
        model=ModelSpec(name="llama-3.1-8b", overrides={"num_hidden_layers": 12}),
        hardware=HardwareSpec(GpuSpec("mi455x", 431.2, 10000, 10000, 20000, 19600, 3600), 8, 1, 1024),
        parallelism=ParallelismSpec(1, False, 1, 1, "1f1b", 1, 1, 1, None, 3, None, True, "every", False),
        training=TrainingSpec(
            framework="huggingface",
            framework_version="5.23",
            method="lora",
            lora=LoraSpec(16, ("q_proj", "v_proj"), "fp32"),
            freeze=("embed", "layers:0-24"),
            micro_batch_size=1,
            sequence_length=8192,
            gradient_accumulation_steps=1,
            precision=PrecisionSpec("bf16-mixed", "bf16", "fp32", "none", "fp32", "fp32"),
            optimizer=OptimizerSpec("adamw", "fused", "none"),
            activation_checkpointing=ActivationCheckpointingSpec("full", False, 2, None, "cpu"),
            attention="sdpa",
            loss=LossSpec("chunked", 8, True, False),
            clip_grad_norm=True,
            expert_imbalance=1.0,
            compile=False,
            expandable_segments=None,
            offload=OffloadSpec("cpu"),
            options={"reduce_bucket_size": 50000000},
        ),
        policy=PolicySpec(0.9, 0.85, 0.4, 0.1),
    )


def test_a_serving_plan():
    """Counts with a suffix are numbers, and a number instead of auto is kept."""
    plan = typed(SERVING)
    assert plan.model == ModelSpec(rough=RoughSpec(700_000_000, 32, 4096, 10, 32000))
    assert plan.inference == InferenceSpec(8, 32768, "bf16", "fp8")
    assert (plan.parallelism.data, plan.parallelism.shard_group, plan.training) == (1, 1, None)


def test_an_architecture_in_place():
    """The open parts of a plan are passed on as they are."""
    plan = typed(ARCHITECTURE)
    assert plan.model.architecture == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
    }
    assert plan.training is not None
    assert (plan.training.global_batch_size, plan.training.expandable_segments) == (64, True)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("precision: bf16-pure", "precision", PrecisionSpec(recipe="bf16-pure")),
        ("optimizer: adafactor", "optimizer", OptimizerSpec(name="adafactor")),
        (
            "activation_checkpointing: selective",
            "activation_checkpointing",
            ActivationCheckpointingSpec(mode="selective"),
        ),
        (
            "activation_checkpointing: {modules: [mlp]}",
            "activation_checkpointing",
            ActivationCheckpointingSpec(modules=("mlp",)),
        ),
        ("loss: fused-linear", "loss", LossSpec(kind="fused-linear")),
        ("lora: {target_modules: all-linear}", "lora", LoraSpec(target_modules="all-linear")),
        ("gradient_accumulation_steps: 4.0", "gradient_accumulation_steps", 4),
        ("expert_imbalance: 2", "expert_imbalance", 2),
        ("freeze: []", "freeze", ()),
    ],
)
def test_shorthand_and_mapping_become_one_record(line, field, value):
    """A word stands for the record that has it in its main field; 4.0 is 4 where whole numbers are wanted."""
    plan = typed(f"{SMALL}  {line}\n")
    got = getattr(plan.training, field)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("700M", 700_000_000),
        ("8B", 8_000_000_000),
        ("8.03b", 8_030_000_000),
        ("1.5 T", 1_500_000_000_000),
        ("0.1k", 100),
        ("0.0001K", 1),
        (8030261248, 8030261248),
        (8e9, 8_000_000_000),
    ],
)
def test_counts_are_exact(text, count):
    """Suffixes are powers of ten, computed on digits rather than on floats."""
    assert parse_count(text) == count
    assert isinstance(parse_count(text), int)


@pytest.mark.parametrize(
    ("text", "fraction"), [("90%", 0.9), ("85.5%", 0.855), (0.9, 0.9), (1, 1), ("modeled", "modeled")]
)
def test_percentages_are_fractions(text, fraction):
    """Utilizations are compared as fractions."""
    assert parse_fraction(text) == fraction


def test_a_clean_plan_imports_nothing_heavy():
    """The libraries that only explain or suggest are not loaded for a plan in which nothing is wrong."""
    heavy = {
        "jsonschema",
        "difflib",
        "dataclasses",
        "inspect",
        "copy",
        "memcheck.plan.explain",
        "memcheck.plan.traps",
        "memcheck.plan.extends",
        "memcheck.plan.syntax",
    }
    code = (
        "import sys\n"
        "from memcheck.plan.read import load_documents\n"
        "from memcheck.plan.read import read_plan\n"
        f"plan, findings = read_plan(load_documents('x.yaml', {FULL.encode()!r})[0])\n"
        "assert plan is not None and not findings\n"
        "print(*sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy & set(out) == set()
    assert "memcheck.plan.schema" in out


def test_every_document_of_a_file_is_a_plan_of_its_own():
    """One broken plan does not hide its neighbours."""
    text = f"{SMALL}---\n{changed('4096', '-1')}---\nother: thing\n---\n{SERVING}"
    results = [read_plan(document) for document in load_documents("plans.yaml", text.encode())]
    assert [plan is not None for plan, _ in results] == [True, False, False, True]
    assert [[finding.code for finding in findings] for _, findings in results] == [[], ["MEM014"], ["MEM010"], []]
    assert results[1][1][0].location.span.line == 13


def test_a_duplicate_key_is_reported_and_the_plan_still_read():
    """The last value is used, as YAML does, so that the rest of the plan can be judged."""
    plan, findings = read(f"{SMALL}  sequence_length: 8192\n")
    assert plan is not None
    assert plan.training is not None
    assert plan.training.sequence_length == 8192
    assert [finding.code for finding in findings] == ["MEM003"]


def test_values_changed_in_memory_are_read_like_written_ones():
    """A document whose values were replaced is validated by its values, and located as near as the file allows."""
    (document,) = load_documents("x.yaml", SMALL.encode())
    document = document._replace(values={**document.values, "parallelism": {"tensor": 0}})
    plan, (finding,) = read_plan(document)
    assert plan is None
    assert (finding.pointer, finding.location.span.line) == ("/parallelism/tensor", 1)
    assert finding.message == "`tensor` must be a whole number of at least 1, not the number `0`"
