"""Buffers that FSDP2 leaves in the dtype in which the model was made: what they are added to is as wide."""

from __future__ import annotations

import pytest

from benchmarks.added import added
from memcheck.accounts.ranks import Part
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.units import base_setting
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents, read_plan

PLAN = """\
memcheck: 1
model: {{architecture: {model}}}
hardware: {{gpu: a100-80gb, gpus_per_node: 2, nodes: 1}}
parallelism: {{zero_stage: 3}}
training: {{framework: huggingface, micro_batch_size: 2, sequence_length: 512, precision: {recipe}}}
"""


def _always(kind: str, recipe: str) -> int:
    text = PLAN.format(model=added()[kind]["config"], recipe=recipe)
    (document,) = load_documents("plan.yaml", text.encode())
    plan, _ = read_plan(document)
    assert plan is not None
    job = resolve(plan, FRAMEWORKS, base_dir="").job
    assert isinstance(job, TrainingJob)
    a = job.architecture
    assert isinstance(a, Architecture)
    part = Part(first_layer=0, end_layer=a.num_layers, has_embedding=True, has_head=True)
    setting = base_setting(job, a, None)
    assert setting.param_dtype == "bf16"
    return sum(each.bytes for each in ModelBuffers(job, a, part, setting).always())


@pytest.mark.parametrize("kind", ["bart", "m2m_100"])
def test_buffers_are_as_wide_as_the_weights_rest(kind: str) -> None:
    """A bias of the logits, and tables of positions, are fp32 where the shards are, whatever is gathered."""
    config = added()[kind]["config"]
    numbers = config["vocab_size"] if kind == "bart" else 2 * 1026 * config.get("d_model", 1024)
    assert _always(kind, "bf16-mixed") - _always(kind, "bf16-pure") == pytest.approx(2 * numbers, abs=1024)
