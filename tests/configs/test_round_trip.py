"""Out to a framework's config and back: the same memory, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs import read_megatron as megatron_keys
from memcheck.configs.formats import WRITTEN
from memcheck.configs.importing import import_config
from memcheck.configs.key_table import key_table
from memcheck.configs.types import ReadSetting
from memcheck.job.types import TrainingJob
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from tests.configs.jobs import FOR, MADE, back, examples, made, peaks, resolved, runs_from, written

CASES = [(name, format) for name in MADE for format in FOR[name.partition("-")[0]]]


def returned(document: Document, format: str) -> Document:
    """The plan that comes back; nothing may be missing on the way."""
    imported = back(document, format, written(document, format))
    assert imported.problems == ()
    assert imported.notes == ()
    (again,) = load_documents("again.yaml", imported.text.encode())
    return again


@pytest.mark.parametrize(("name", "format"), CASES)
def test_made_plans_come_back(name: str, format: str) -> None:
    """Every layout, recipe and option that a format can say survives, and so does the predicted peak."""
    document = made(name)
    assert written(document, format).lost == ()
    again = returned(document, format)
    assert peaks(again) == peaks(document)
    first, second = (resolved(each)[1].job for each in (document, again))
    assert isinstance(first, TrainingJob)
    assert isinstance(second, TrainingJob)
    for field in ("layout", "recipe", "micro_batch_size", "sequence_length", "gradient_accumulation_steps"):
        assert getattr(first, field) == getattr(second, field), field


@pytest.mark.parametrize("format", list(WRITTEN))
def test_examples_come_back(root: Path, format: str) -> None:
    """Every example that runs from a format comes back from it with the same peak."""
    found = 0
    for name, document in examples(root / "examples"):
        if runs_from(document, format):
            assert written(document, format).lost == (), name
            assert peaks(returned(document, format)) == peaks(document), name
            found += 1
    assert found >= 2


def test_tables_are_shared() -> None:
    """A path of a framework stands for one key of the plan, and a key for one path: reader and writer cannot drift."""
    accelerate, megatron = key_table("accelerate").rows, key_table("megatron").rows
    tables = (
        key_table("torchtitan").rows["rows"],
        key_table("deepspeed").rows["rows"],
        (*accelerate["degrees"], *accelerate["engine"]),
        (*megatron_keys.DIMENSIONS, *megatron["layout"], *megatron_keys.OPTIONS),
    )
    for rows in tables:
        names = [name for row in rows for name in (row.path, *row.aliases)]
        assert len(names) == len(set(names))
        assert len({row.key for row in rows}) == len(rows)
        for row in rows:
            assert row.kind == "word" or not isinstance(row.default, str), row


@pytest.mark.parametrize(
    "section",
    [
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1, fsdp_cpu_ram_efficient_loading: true}\n",
        "distributed_type: FSDP\nnum_machines: 2\nfsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: HYBRID_SHARD}\n",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_cpu_ram_efficient_loading: false}\n",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, zero3_init_flag: false, zero3_save_16bit_model: true}\n",
        "distributed_type: DEEPSPEED\nparallelism_config: {parallelism_config_sp_size: 2}\ndeepspeed_config: {zero_stage: 3}\n",
    ],
)
def test_accelerates_configs_come_back(section: str) -> None:
    """Read, written and read again, a config means the same job, whichever release of FSDP it asks for."""
    stated = {"hardware.gpu": "h200", "model": "llama-3.2-1b", "training.sequence_length": 1024}
    given = {key: ReadSetting(value, "test") for key, value in {**stated, "training.micro_batch_size": 1}.items()}
    text = f"mixed_precision: bf16\nnum_processes: 8\n{section}"
    (first,) = load_documents("plan.yaml", import_config("a.yaml", text.encode(), given).text.encode())
    assert written(first, "accelerate").lost == ()
    second = returned(first, "accelerate")
    assert resolved(second)[1].job == resolved(first)[1].job


def test_megatrons_older_recompute_comes_back() -> None:
    """What releases of old leave to their defaults is written out, and is the plan's already."""
    script = "python pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --bf16 "
    script += "--max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 --vocab-size 1024 "
    script += "--checkpoint-activations --num-distributed-optimizer-instances 1\n"
    given = {"hardware.gpu": ReadSetting("h100-80gb", "test"), "hardware.gpus_per_node": ReadSetting(8, "test")}
    (first,) = load_documents("plan.yaml", import_config("run.sh", script.encode(), given).text.encode())
    assert resolved(returned(first, "megatron"))[1].job == resolved(first)[1].job
