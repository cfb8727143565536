"""Steps of transformers' Trainer and accelerate's own objects, and what the model takes their defaults to be."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cases import load
from benchmarks.drawn import HIGH, LOW, gaps
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.recipe import framework_recipe
from memcheck.job.types import Layout

RECORDS: dict[str, dict[str, Any]] = {record["id"]: record for record in load("trainer.json")["steps"]}
"""Plans drawn at random and traced in the Trainer's own objects (``benchmarks.trainer_trace``: transformers 5.23.0,
accelerate 1.15.0, torch 2.13.0, peft 0.21.2). ``above``: moments that are further off than others may be, and by how much."""
PROFILE = FRAMEWORKS["huggingface"]
SHARDED = Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_every_moment_of_the_trainers_step(name: str) -> None:
    """Within 1 %, but for the moments that say how far above they are, and not more than 0.5 % too low."""
    record = RECORDS[name]
    above = record.get("above", {})
    for of in gaps(record).values():
        for moment, gap in of.items():
            assert LOW <= gap <= above.get(moment, HIGH), moment


def test_no_moment_is_low() -> None:
    """No recorded step has a moment that is predicted more than 0.5 % too low."""
    assert not [name for name, record in RECORDS.items() if "below" in record]


@pytest.mark.torch
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_accelerates_policy(version: int, precision: str) -> None:
    """FSDP gathers and reduces in the dtypes of accelerate's plugin, which the Trainer's arguments make."""
    accelerate = pytest.importorskip("accelerate.utils")
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=version)
    plugin.set_mixed_precision(precision)
    policy, recipe = plugin.mixed_precision_policy, framework_recipe(f"{precision}-mixed", SHARDED, PROFILE)
    names = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
    assert str(policy.param_dtype) == names[recipe.compute]
    assert str(policy.reduce_dtype) == names[recipe.reduce]
    assert policy.cast_forward_inputs is (version == 2)
    assert str(policy.buffer_dtype if version == 1 else policy.output_dtype) == names[precision]


@pytest.mark.torch
def test_what_the_trainer_tells_accelerate(tmp_path: Any) -> None:
    """FSDP2 that reshards, full state dicts, original parameters under FSDP1, and one reduction a step."""
    transformers = pytest.importorskip("transformers")
    accelerate = pytest.importorskip("accelerate.utils")
    options = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": []}
    newest = transformers.TrainingArguments(**options, fsdp=True).fsdp_plugin_args
    assert (newest["fsdp_version"], newest["reshard_after_forward"]) == (2, True)
    assert newest["state_dict_type"] == "FULL_STATE_DICT"
    assert PROFILE.load_and_save.checkpoint == ("full", "full")
    former = transformers.TrainingArguments(**options, fsdp=True, fsdp_config={"version": 1}).fsdp_plugin_args
    assert former["use_orig_params"] is True
    assert former["reshard_after_forward"] == "full_shard"
    assert PROFILE.parallelism.gradient_sync_default == "last"
    assert accelerate.GradientAccumulationPlugin(num_steps=4).sync_each_batch is False
    assert accelerate.DistributedDataParallelKwargs().gradient_as_bucket_view is False


@pytest.mark.torch
@pytest.mark.slow
def test_classes_without_layers_to_wrap() -> None:
    """Those of ``unsplit``, and no others, have no layers among their ``_no_split_modules``, by which FSDP wraps."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.asked import request_of
    from benchmarks.family_draw import families
    from memcheck.errors import MemcheckError
    from memcheck.verify.build.model import blocks_of, build_model

    whole = set()
    for kind, plan in families().items():
        training = {**plan["training"], "framework": "huggingface", "precision": "bf16-pure"}
        try:
            request = request_of(kind, {**plan, "training": {**training, "activation_checkpointing": "none"}})
        except MemcheckError:
            continue
        with torch.device("meta"):
            model: Any = build_model(request.job, request.architecture, request.config)
        named = set(model._no_split_modules or ())
        if not named & {type(block).__name__ for block in blocks_of(model, request.architecture)}:
            whole.add(request.architecture.model_type)
    assert whole == set(PROFILE.unsplit)
