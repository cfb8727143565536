"""Parameters that transformers' classes keep in fp32, whatever dtype a checkpoint is loaded in."""

import json
from typing import Any

import pytest

from benchmarks.added import added, added_plans
from memcheck.accounts.state import LocalTensor
from memcheck.families.registry import read_architecture
from memcheck.frameworks.torch.rank_tensors import kept_names
from memcheck.frameworks.torch.tower_tensors import model_tensors
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents
from memcheck.verify.subject import Subject, load_subject
from tests.verify.plans import plan, subject


def job_of(kind: str, **training: Any) -> TrainingJob:
    """A small model of a family."""
    plan = next(plan for name, plan in added_plans().items() if name.startswith(f"{kind} added,"))
    plan = {**plan, "training": {**plan["training"], **training}}
    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    subject = load_subject(document)
    assert isinstance(subject, Subject)
    assert isinstance(subject.job, TrainingJob)
    return subject.job


def tensors_of(job: TrainingJob) -> list[LocalTensor]:
    """Every parameter tensor of the model."""
    assert isinstance(job.architecture, Architecture)
    return [t for tensors in model_tensors(job, job.architecture) for t in tensors]


def wide(job: TrainingJob) -> set[str]:
    """The last parts of the names of those in fp32."""
    return {t.name.removesuffix(".weight").rpartition(".")[2] for t in tensors_of(job) if t.dtype == "fp32"}


def test_strictly_kept_parameters() -> None:
    """Ling 3's convolutions and decays are fp32 in a model of bf16."""
    assert wide(job_of("bailing_hybrid", precision="bf16-pure")) == {"conv1d", "dt_bias", "A_log"}


def test_parameters_kept_in_fp16_alone() -> None:
    """T5's last matrices are fp32 in a model of fp16, in both stacks, and no other tensor is; in bf16 none is."""
    found = [t for t in tensors_of(job_of("t5", precision="fp16-pure")) if t.dtype == "fp32"]
    assert {t.name for t in found} == {"layer.1.DenseReluDense.wo.weight", "layer.2.DenseReluDense.wo.weight"}
    assert wide(job_of("t5", precision="bf16-pure")) == set()


def test_engine_casts_whole_models() -> None:
    """DeepSpeed's engine casts what it is given to one dtype, and nothing is kept of a model in fp32 as it is."""
    assert kept_names(job_of("bailing_hybrid", precision="bf16-pure", framework="deepspeed")) == ()
    assert kept_names(job_of("bailing_hybrid", precision="fp32")) == ()


NARROW = {"recipe": "bf16-mixed", "params": "bf16"}
ENDS = {"fp32_embeddings": True}
SMALL = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1536, "vocab_size": 8000}


def ended(model: str, **training: Any) -> dict[str, Any]:
    """A model of three layers, trained whole, whose ends are upcast."""
    overrides = {"num_hidden_layers": 3, **SMALL}
    if model == "qwen1.5-moe-a2.7b":
        overrides |= {
            "num_key_value_heads": 8,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 512,
        }
    said = {"framework": "huggingface", "precision": NARROW, "attention": "sdpa", "options": ENDS, **training}
    found = plan(model={"name": model, "overrides": overrides}, **said)
    return {**found, "training": {**found["training"], "sequence_length": 1024}}


def test_ends_that_a_trainer_upcasts() -> None:
    """Norms, routers, embedding and head rest in fp32, and the others as they were loaded; in fp32 nothing is left."""
    found = subject(ended("qwen1.5-moe-a2.7b")).job
    assert isinstance(found, TrainingJob)
    tensors = {t.name: t.dtype for t in tensors_of(found)}
    assert {name for name, dtype in tensors.items() if dtype == "fp32"} == {
        "embed_tokens.weight", "lm_head.weight", "final_norm.weight", "mlp.gate.weight", "input_layernorm.weight",
        "post_attention_layernorm.weight",
    }  # fmt: skip
    whole = subject(ended("qwen1.5-moe-a2.7b", precision="fp32")).job
    assert isinstance(whole, TrainingJob)
    assert kept_names(whole) == ()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b", "qwen1.5-moe-a2.7b"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_ends_that_a_trainer_upcasts_in_a_step(model: str, recompute: str) -> None:
    """Every moment of the step of a model that was upcast as Axolotl upcasts it: the stream is fp32, too."""
    pytest.importorskip("torch")
    from tests.verify.running import traced

    _, _, (ranks,) = traced(ended(model, activation_checkpointing=recompute, optimizer="adamw"))
    predicted = {each.name: each.allocated_bytes for each in ranks.predicted.instants}
    seen = {each.name: each.allocated_bytes for each in ranks.observed.instants}
    assert predicted.keys() == seen.keys()
    assert all(-0.003 <= predicted[name] / seen[name] - 1 <= 0.005 for name in seen)


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_kept_layers_are_not_quantised(base: str) -> None:
    """bitsandbytes leaves T5's ``wo`` as it is: a quarter of the model's layers is not in 4 bits."""
    job = job_of(
        "t5", precision="bf16-mixed", method="qlora", base=base, lora={"rank": 8, "target_modules": ["q", "v"]}
    )
    by_name = {t.name.rpartition("DenseReluDense.")[2]: t.dtype for t in tensors_of(job) if "DenseReluDense" in t.name}
    assert by_name == {"wi.weight": base, "wo.weight": None}


@pytest.mark.torch
@pytest.mark.slow
def test_names_are_those_of_the_classes() -> None:
    """Every family that was added rests with those parameters in fp32 that its class names, in bf16 and in fp16."""
    torch = pytest.importorskip("torch")
    import transformers
    from transformers.core_model_loading import build_glob_alternation

    from memcheck.verify.build.model import class_of

    wrong: dict[str, tuple[int, int]] = {}
    for kind, record in added().items():
        config = {key: value for key, value in record["config"].items() if key != "model_type"}
        with torch.device("meta"):
            model = class_of(kind)(transformers.AutoConfig.for_model(kind, **config))
        for word, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            plan = model._get_dtype_plan(dtype)
            parts = build_glob_alternation(list(plan))[0] if plan else None
            said = sum(p.numel() for n, p in model.named_parameters() if parts is not None and parts.search(n))
            a = read_architecture(record["config"])
            names = a.fp32_params.always + (a.fp32_params.of_fp16 if word == "fp16" else ())
            found = 0
            if names:
                job = job_of(kind, precision=f"{word}-pure", attention="eager")
                found = sum(t.numel for t in tensors_of(job) if t.dtype == "fp32")
            if said != found:
                wrong[f"{kind} in {word}"] = (said, found)
    assert not wrong


@pytest.mark.torch
@pytest.mark.slow
def test_traces_are_of_loaded_models(tmp_path: Any) -> None:
    """What is traced has the dtypes of a model that was saved, and loaded by ``from_pretrained`` in fp16."""
    torch = pytest.importorskip("torch")
    import transformers

    from benchmarks.asked import request_of
    from memcheck.verify.build.model import build_model

    plan = dict(added_plans()["t5 added, sdpa, none, fp16-pure"])
    request = request_of("t5", plan)
    with torch.device("meta"):
        built = build_model(request.job, request.architecture, request.config)
    config = transformers.AutoConfig.for_model("t5", **{k: v for k, v in request.config.items() if k != "model_type"})
    transformers.T5ForConditionalGeneration._from_config(config).save_pretrained(tmp_path)
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    dtypes = {name: p.dtype for name, p in loaded.named_parameters()}
    assert {name: p.dtype for name, p in built.named_parameters()} == dtypes
    assert set(dtypes.values()) == {torch.float16, torch.float32}
