"""Megatron-LM's functional tests to jobs: the plan that ``memcheck import`` makes of their arguments, resolved.

What the arguments leave to the test harness is added here: the GPUs, the size of the tokenizer files that the tests
load, and what their environment fixes.
"""

from __future__ import annotations

from typing import Any

from memcheck.accounts.estimate import RankEstimate
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.importing import merged
from memcheck.configs.plan_text import plan_values
from memcheck.configs.read_megatron import read_megatron
from memcheck.configs.types import ReadSetting
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.workspaces import CUBLAS_WORKSPACE, Device
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.plan.finding import Location, Span
from memcheck.plan.read import build_plan

MIB = 2**20
ARCHITECTURES = {"a100": "sm_80", "h100": "sm_90", "gb200": "sm_100"}
VOCABULARIES = {"GPT2BPETokenizer": 50257, "GPTSentencePieceTokenizer": 256000, "TikTokenizer": 131072}
"""Sizes of the tokenizer files that the tests load; NullTokenizer states ``vocab-size``."""
DETERMINISTIC_CUBLAS_BYTES = 32 * MIB
"""``CUBLAS_WORKSPACE_CONFIG=:4096:8`` of the deterministic tests."""
SMALL_CUBLAS_BYTES = CUBLAS_WORKSPACE
"""torch's default for Blackwell before pytorch/pytorch#175344 of February 2026. Which tests were recorded in such a
container is not written down, but what rests after a step tells: 47.75 MiB less than in their twins."""
GPU = "h100-80gb"
"""Any: the job does not depend on it."""


def _at(case: str, line: int) -> Location:
    return Location(case, Span(line, 1, line, 1))


def job_of(record: dict[str, Any], gpu: str) -> TrainingJob:
    """The job of one test on one GPU."""
    arguments = record["arguments"]
    lines = {key: number for number, key in enumerate(arguments, 2)}
    config = ConfigFile(record["case"], arguments, lambda key: _at(record["case"], lines.get(key, 1)), ())
    stated: dict[str, object] = {
        "hardware.gpu": GPU,
        "hardware.nodes": record["nodes"],
        "hardware.gpus_per_node": record["gpus_per_node"],
        "parallelism.data": record["dp"],
    }
    if "vocab-size" not in arguments:
        tokenizer = arguments.get("tokenizer-type", "")
        stated["model.architecture.vocab_size"] = VOCABULARIES.get(tokenizer, VOCABULARIES["GPT2BPETokenizer"])
    reading = read_megatron(config, None)
    settings, problems = merged(reading, {key: ReadSetting(value, "the harness") for key, value in stated.items()})
    if problems:
        raise ValueError(record["case"], problems)
    job = resolve(build_plan(plan_values(settings)), FRAMEWORKS, base_dir=".").job
    if not isinstance(job, TrainingJob):
        raise TypeError
    options = {**dict(job.options), "attention_backend": _kernel(arguments, dict(job.options), gpu)}
    return job._replace(options=tuple(sorted((name, value) for name, value in options.items() if value is not None)))


def ranks_of(record: dict[str, Any], gpu: str) -> tuple[TrainingJob, tuple[RankEstimate, ...]]:
    """Its job and every pipeline rank."""
    job = job_of(record, gpu)
    workspace = DETERMINISTIC_CUBLAS_BYTES if record["deterministic_cublas"] else None
    if record["measured"][gpu].get("small_cublas"):
        workspace = SMALL_CUBLAS_BYTES
    if not isinstance(job.architecture, Architecture):
        raise TypeError
    return job, megatron_ranks(job, job.architecture, Device(ARCHITECTURES[gpu], workspace))


def _kernel(arguments: dict[str, Any], options: dict[str, object], gpu: str) -> object:
    """TransformerEngine's choice in the tests' container: FlashAttention on Ampere, cuDNN's kernel on Hopper and later
    unless dropout has to be deterministic.
    """
    stated = options.get("attention_backend")
    if options.get("transformer_impl") == "local" or stated not in (None, "auto"):
        return stated
    dropout = bool(arguments.get("deterministic-mode")) and float(arguments.get("attention-dropout", 0.1)) > 0
    return "flash" if gpu == "a100" or (dropout and gpu != "h100") else "fused"
