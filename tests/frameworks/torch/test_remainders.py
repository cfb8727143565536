"""TransformerEngine's ``store_param_remainders``: 16 bits of each master weight beside bf16 parameters.

Source: transformer_engine/pytorch/optimizers/fused_adam.py at d0067d0d (``_initialize_state``: ``torch.zeros_like(...,
dtype=torch.int16)``; ``step``: the kernel puts both halves together, with no copy).
"""

from memcheck.accounts.estimate import Estimate
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import load_documents, read_plan

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism: {{zero_stage: 3}}
training:
  framework: pytorch
  micro_batch_size: 1
  sequence_length: 1024
  precision: {{recipe: bf16-pure, master: {master}}}
  optimizer: {{name: adamw, implementation: fused}}
"""


def priced(master: str) -> Estimate:
    """A fused step over bf16 parameters."""
    (document,) = load_documents("plan.yaml", PLAN.format(master=master).encode())
    plan, _ = read_plan(document)
    assert plan is not None
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    return estimate(resolved.job, resolved.gpu, resolved.overhead)


def test_remainders_are_half_of_an_fp32_master() -> None:
    """The moments stay in fp32, and nothing else of the step changes."""
    whole, rest = priced("fp32"), priced("remainder")
    of = whole.components_bytes["master_weights"]
    assert rest.components_bytes["master_weights"] * 2 == of
    assert rest.components_bytes["optimizer_states"] == whole.components_bytes["optimizer_states"] > 2 * of
    assert whole.allocated_bytes - rest.allocated_bytes == of // 2
