"""Plans that fail for every kind of reason, as `check` judges them, for tests of what reports say."""

from __future__ import annotations

from functools import cache

from memcheck.edge.screen import Screen
from memcheck.judge import Gate, check_file
from memcheck.report import renderer
from memcheck.rules.result import PlanResult, Report
from memcheck.what_if import make_dossier, with_remedies

TRAINING = """\
memcheck: 1
name: {name}
model: {model}
hardware: {{gpu: {gpu}, gpus_per_node: {gpus}{hardware}}}
parallelism: {{{parallelism}}}
training:
  framework: {framework}
  micro_batch_size: 1
  sequence_length: 2048
  activation_checkpointing: full
{training}"""
SERVING = """\
memcheck: 1
name: {name}
model: {model}
hardware: {{gpu: {gpu}, gpus_per_node: {gpus}{hardware}}}
parallelism: {{{parallelism}}}
inference: {{batch_size: {batch}, context_length: 131072}}
"""
USUAL = {
    "model": "llama-3.1-8b",
    "gpu": "h100-80gb",
    "gpus": "8",
    "hardware": "",
    "parallelism": "zero_stage: 3",
    "framework": "huggingface",
    "training": "  precision: bf16-mixed\n",
}
WIDE = '  precision: {recipe: bf16-mixed, reduce: fp32}\n  options: {accelerate_version: "1.13"}\n'
ON_HOST = "  precision: bf16-mixed\n  initialization: host\n"
PLANS = {
    "host-load": {"hardware": ", host_memory_gib: 128", "training": ON_HOST},
    "host-step": {
        "framework": "deepspeed",
        "hardware": ", host_memory_gib: 64",
        "training": "  precision: bf16-mixed\n  optimizer: {name: adamw, offload: cpu}\n",
    },
    "host-and-gpu": {"gpu": "l4", "gpus": "4", "hardware": ", host_memory_gib: 64", "training": ON_HOST},
    "host-and-rule": {"gpu": "v100-32gb", "hardware": ", host_memory_gib: 128", "training": ON_HOST},
    "gpu-load": {
        "model": "llama-3.3-70b",
        "gpu": "rtx-4090",
        "training": "  method: qlora\n  precision: bf16-mixed\n  initialization: device\n",
    },
    "gpu-save": {
        "model": "qwen2.5-14b",
        "gpu": "a100-40gb",
        "framework": "pytorch",
        "training": "  precision: bf16-mixed\n  checkpoint: {state_dict: full, offload: none}\n",
    },
    "gpu-step": {"gpu": "rtx-4080", "training": WIDE},
    "above-limit": {"hardware": "", "training": f"{WIDE}policy: {{fail_above: 30%, warn_above: 25%}}\n"},
    "uncertain": {
        "gpu": "{name: lab, memory_gib: 25}",
        "training": f"{WIDE}policy: {{fail_above: 100%, warn_above: 100%}}\n",
    },
    "rule": {"gpu": "v100-32gb"},
    "illegal": {"parallelism": "zero_stage: 3, data: 3"},
    "serving": {"gpus": "1", "parallelism": "", "batch": "8"},
    "serving-fits": {"gpus": "1", "parallelism": "", "batch": "1"},
}
"""What each plan fails by; ``uncertain`` passes with a warning, ``serving-fits`` without one."""


def written(name: str) -> str:
    """The plan's text."""
    given = USUAL | PLANS[name] | {"name": name}
    return (SERVING if "batch" in given else TRAINING).format(**given)


@cache
def judged(name: str) -> PlanResult:
    """The plan with everything that reports to pass on show."""
    (plan,), traces = check_file(
        f"{name}.yaml", written(name).encode(), Gate(dossier=make_dossier, remedies=with_remedies)
    )
    assert not traces, traces
    return plan


def said(form: str, *names: str) -> str:
    """All that a format says of plans."""
    return renderer(form)(Report("0.1.0", tuple(judged(name) for name in names)), Screen(verbose=True))
