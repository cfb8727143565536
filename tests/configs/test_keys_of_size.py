"""Keys that bear on size and stand where others are harmless: one line of a config, and what becomes of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from memcheck.families.registry import architecture_of
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec
from tests.configs.test_pages import example
from tests.configs.test_readers import ACCELERATE, GPUS, MEGATRON, REST, TITAN, read, values

ENGINE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "gradient_accumulation_steps": 1,
}
SAVES, WAITS = "\n[checkpoint]\nenable = true\n", 'async_mode = "async_with_pinned_mem"\n'
AUTOMODEL = """\
step_scheduler: {global_batch_size: 8, local_batch_size: 1}
model: {pretrained_model_name_or_path: meta-llama/Llama-3.1-8B}
distributed: {strategy: ddp}
dataset: {seq_length: 2048}
"""


def engine(**more: Any) -> str:
    """A DeepSpeed config with further sections."""
    return json.dumps(ENGINE | more)


def test_torchtitans_checkpoints_wait_on_the_host_where_there_are_any() -> None:
    """The mode of checkpoints that are not made decides nothing."""
    key = "training.checkpoint.asynchronous"
    assert values(read("job.toml", TITAN + SAVES + WAITS, GPUS))[key] is True
    assert key not in values(read("job.toml", TITAN + SAVES.replace("true", "false") + WAITS, GPUS))


@pytest.mark.parametrize(("rows", "switch", "notes"), [(4, "enable", 0), (16, "enable", 1), (16, "enabled", 1)])
def test_a_validation_larger_than_a_step_is_a_note(rows: int, switch: str, notes: int) -> None:
    """Four sequences of 8,192 tokens are a step of this job; a pass without gradients over as many needs less."""
    section = f"\n[validation]\n{switch} = true\nlocal_batch_size = {rows}\nseq_len = 8192\n"
    found = read("job.toml", TITAN + section, GPUS).notes
    assert sum("pass between steps" in each.message for each in found) == notes


@pytest.mark.parametrize(
    ("how", "pipeline", "bounded"), [("fused", 1, True), ("foreach", 1, False), ("fused", 2, False)]
)
def test_fused_steps_within_backward_are_bounded(how: str, pipeline: int, bounded: bool) -> None:
    """Steps that make no copies need no more than one behind the backward; torchtitan has none in a pipeline."""
    text = TITAN.replace("parallel_degree = 2", f"parallel_degree = {pipeline}")
    text += f'\n[optimizer]\nimplementation = "{how}"\nearly_step_in_backward = true\n'
    imported = read("job.toml", text, GPUS)
    assert ("training.options.early_step_in_backward" in values(imported)) != bounded
    assert any("upper bound" in each.message for each in imported.notes) == bounded


def test_an_elastic_engine_takes_the_largest_micro_batch() -> None:
    """With elasticity the engine reads its own list, and no other size; which one it takes depends on the GPUs."""
    elastic = {"enabled": True, "micro_batch_sizes": [2, 8, 4], "max_train_batch_size": 512}
    beside = {key: value for key, value in REST.items() if "batch" not in key}
    imported = read("ds.json", engine(elasticity=elastic), GPUS, beside)
    assert values(imported)["training.micro_batch_size"] == 8
    assert any("the largest" in each.message for each in imported.notes)


def test_a_third_state_of_the_engines_adam_is_refused() -> None:
    """``amsgrad`` keeps the highest second moment as well."""
    text = engine(optimizer={"type": "AdamW", "params": {"torch_adam": True, "amsgrad": True}})
    assert any("third state" in each.message for each in read("ds.json", text, GPUS, REST).problems)


def test_accelerates_older_word_for_fp16() -> None:
    """``fp16: true`` is what configs say that have no ``mixed_precision``."""
    found = values(read("a.yaml", ACCELERATE.replace("mixed_precision: 'no'", "fp16: true"), GPUS, REST))
    assert found["training.precision"] == "fp16-mixed"


def test_ms_amp_is_refused() -> None:
    """Its states are of 8 bits, those of the other backends are not."""
    text = ACCELERATE.replace("'no'", "fp8") + "fp8_config: {backend: MSAMP, opt_level: O2}\n"
    assert any("MS-AMP" in each.message for each in read("a.yaml", text, GPUS, REST).problems)
    assert not read("a.yaml", text.replace("MSAMP", "TE"), {"hardware.gpu": "h100-80gb"}, REST).problems


@pytest.mark.parametrize(("old", "new"), [("tensor-", ""), ("micro-", "")])
def test_megatrons_older_names(old: str, new: str) -> None:
    """Forks of early releases say --model-parallel-size and --batch-size."""
    text = MEGATRON.replace(f"--{old}model", f"--{new}model").replace(f"--{old}batch", f"--{new}batch")
    assert text != MEGATRON
    then, now = (values(read("run.sh", each, {"hardware.gpu": "h100-80gb"})) for each in (MEGATRON, text))
    assert then == now


def test_megatrons_gate_beside_swiglu() -> None:
    """``--quick-geglu`` doubles the first product of an expert as ``--swiglu`` does."""

    def parameters(*switches: str) -> int:
        text = MEGATRON.replace("--bf16", "--ffn-hidden-size 1024 --num-experts 4 --bf16 " + " ".join(switches))
        found = values(read("run.sh", text, {"hardware.gpu": "h100-80gb"}))
        prefix = "model.architecture."
        dimensions = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        model = architecture_of(ModelSpec(architecture=dimensions))
        assert isinstance(model, Architecture)
        return count_parameters(model)

    assert parameters("--quick-geglu") == parameters("--swiglu") > parameters()


@pytest.mark.parametrize("flavor", ["debugmodel", "debugmodel_moe"])
def test_torchtitans_debug_models(flavor: str) -> None:
    """They are small, whatever catalog model their dimensions are written over."""
    text = TITAN.replace("llama3", "qwen3").replace("8B", flavor).replace("pipeline_parallel_degree = 2", "")
    found = values(read("job.toml", text, GPUS))
    assert found["model.overrides"]["hidden_size"] == 256  # type: ignore[index]


def test_a_compiled_model_outside_of_fsdp2() -> None:
    """AutoModel compiles the whole model for DDP, and leaves that out under FSDP2."""
    text = AUTOMODEL + "compile: {enabled: true}\n"
    assert values(read("r.yaml", text, GPUS))["training.compile"] is True
    assert "training.compile" not in values(read("r.yaml", text.replace("ddp", "fsdp2"), GPUS))


def test_rows_are_padded_to_a_multiple() -> None:
    """A length that the multiple does not divide is rounded up, as the collator does."""
    text = AUTOMODEL + "dataloader: {collate_fn: {pad_seq_len_divisible: 160}}\n"
    assert values(read("r.yaml", text, GPUS))["training.sequence_length"] == 2080


def test_a_dimension_that_a_recipe_takes_away_is_null() -> None:
    """``q_lora_rank: null`` makes one product of the query's two."""
    text = AUTOMODEL.replace("{pretrained", "{config: {q_lora_rank: null, pretrained").replace("8B}", "8B}}")
    imported = read("r.yaml", text.replace("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"), GPUS)
    assert "q_lora_rank: null" in imported.text


def test_what_an_engine_leaves_open_is_its_default() -> None:
    """DeepSpeed drops every ``auto`` of its own section; those that the Trainer fills stay what they are."""
    section = {"stage": 3, "stage3_max_live_parameters": "auto", "reduce_bucket_size": "auto"}
    imported = read("ds.json", engine(zero_optimization=section), GPUS, REST)
    assert not imported.problems
    assert "training.options.stage3_max_live_parameters" not in values(imported)
    assert values(imported)["training.options.reduce_bucket_size"] == "auto"


def test_a_quoted_default_of_a_variable_is_its_text() -> None:
    """``${STRATEGY:-"optim_grads_params"}`` is the word without its quotes."""
    text = MEGATRON.replace("TP=2", 'STRATEGY=${STRATEGY:-"optim_grads_params"}\nTP=2')
    text = text.replace("--bf16", "--use-megatron-fsdp --data-parallel-sharding-strategy ${STRATEGY} --bf16")
    assert values(read("run.sh", text, {"hardware.gpu": "h100-80gb"}))["parallelism.zero_stage"] == 3


def test_scripts_that_train_nothing_are_called_by_name() -> None:
    """Conversions, exports and quantizations take the dimensions of a model, too."""
    text = MEGATRON.replace("pretrain_gpt.py", "modelopt/quantize.py")
    assert any("a quantization, which trains nothing" in each.message for each in read("run.sh", text, GPUS).problems)


@pytest.mark.parametrize(("said", "how"), [("true", "fused"), ("false", "foreach")])
def test_nanotrons_fused_adam_where_older_releases_say_it(said: str, how: str) -> None:
    """Releases to 0.4 have the switch one level higher."""
    _, text = example("nanotron")
    old = re.sub(r"  optimizer_factory:\n(    .*\n)+", f"  torch_adam_is_fused: {said}\n", text)
    assert values(read("c.yaml", old, {"hardware.gpu": "h100-80gb"}))["training.optimizer.implementation"] == how


def test_the_mesh_of_automodel_has_as_many_ranks_as_it_says() -> None:
    """A data-parallel size that is stated is the plan's, and disagrees with another number of GPUs."""
    found = read("r.yaml", AUTOMODEL.replace("ddp}", "ddp, dp_size: 4}"), GPUS)
    assert values(found)["parallelism.data"] == 4


@pytest.mark.parametrize(
    ("section", "value", "key"),
    [
        ("zero_optimization", {"stage": 3, "leaf_module": {"names": ["layers.0"]}}, "leaf_module"),
        ("sparse_gradients", True, "sparse_gradients"),
        ("tensor_parallel", {"autotp_size": 2, "keep_module_on_host": True}, "keep_module_on_host"),
        ("elasticity", {"enabled": False, "model_parallel_size": 2}, "model_parallel_size"),
        ("optimizer", {"type": "SGD", "params": {"lr": 0.1, "foreach": True}}, "foreach"),
    ],
)
def test_what_an_engine_holds_beside_is_a_note(section: str, value: object, key: str) -> None:
    """Whole sections were taken for harmless, whatever stood in them."""
    found = read("ds.json", engine(**{section: value}), GPUS, REST)
    assert not found.problems
    assert [key in each.message for each in found.notes] == [True]


@pytest.mark.parametrize(
    "argument",
    ["--overlap-p2p-communication-warmup-flush", "--optimizer muon --no-use-layer-wise-param-layout"],
)
def test_what_megatron_holds_beside_is_a_note(argument: str) -> None:
    """Inputs that are received early, and all parameters gathered once more behind a step of Muon."""
    name = argument.rpartition("--")[2]
    found = read("run.sh", f"{MEGATRON.rstrip()} {argument}\n", {"hardware.gpu": "h100-80gb"})
    assert any(f"`{name}`" in each.message for each in found.notes)


@pytest.mark.parametrize(("said", "name"), [("", "sgd-momentum"), (" --sgd-momentum 0.0", "sgd")])
def test_megatrons_sgd_without_momentum_keeps_no_state(said: str, name: str) -> None:
    """Its momentum is 0.9 where nothing is said."""
    text = f"{MEGATRON.rstrip()} --optimizer sgd{said}\n"
    assert values(read("run.sh", text, {"hardware.gpu": "h100-80gb"}))["training.optimizer.name"] == name


def test_the_copies_of_torchtitans_last_checkpoint_are_a_note() -> None:
    """The parameters are cast for it where they are exported in another dtype, if anything is saved."""
    for saves, dtype, notes in (("true", "bfloat16", 1), ("true", "float32", 0), ("false", "bfloat16", 0)):
        text = f'{TITAN}{SAVES.replace("true", saves)}export_dtype = "{dtype}"\n'
        assert sum("last checkpoint" in each.message for each in read("job.toml", text, GPUS).notes) == notes


@pytest.mark.parametrize(
    ("converter", "precision"),
    [("quantize.linear.float8", "fp8-mixed"), ("quantize.grouped_mm.float8", "bf16-mixed")],
)
def test_a_converter_of_experts_leaves_linear_layers_alone(converter: str, precision: str) -> None:
    """Experts in fp8 were linear layers in fp8."""
    found = read("job.toml", TITAN.replace("[model]", f'[model]\nconverters = ["{converter}"]'), GPUS)
    assert values(found)["training.precision"] == precision
    assert any(converter in each.message for each in found.notes) == (precision == "bf16-mixed")


@pytest.mark.parametrize(("said", "rows"), [("", 4), ("\npipeline_parallel_microbatches = 4", 2)])
def test_older_pipelines_of_torchtitan_cut_a_local_batch_into_parts(said: str, rows: int) -> None:
    """As many as there are ranks, where later releases say the size of a micro-batch, which is 1."""
    text = TITAN.replace("pipeline_parallel_degree = 2", "").replace("local_batch_size = 4", "batch_size = 8")
    old = f"{text}\n[experimental]\npipeline_parallel_degree = 2{said}\n"
    found = values(read("job.toml", old, GPUS))
    assert found["training.micro_batch_size"] == rows
    assert found["training.options.pipeline_parallel_first_stage_less_layers"] == 0
    (problem,) = read("job.toml", old.replace("batch_size = 8", "batch_size = 5"), GPUS).problems
    assert "do not divide into as many parts" in problem.message
    assert values(read("job.toml", TITAN, GPUS))["training.micro_batch_size"] == 1


@pytest.mark.parametrize(("degree", "parts"), [("training", ["model"]), ("parallelism", None)])
def test_older_releases_of_torchtitan_compile_no_loss(degree: str, parts: list[str] | None) -> None:
    """A loss that is not compiled makes a copy of the logits in fp32."""
    text = TITAN.replace("[training]", f"[{degree}]\ntensor_parallel_degree = 1\n[training]\ncompile = true")
    if degree == "training":
        text = text.replace(
            "[training]\ntensor_parallel_degree = 1\n[training]", "[training]\ntensor_parallel_degree = 1"
        )
    else:
        text = text.replace("[parallelism]\ndata", "data").replace("[parallelism]\ntensor_parallel_degree = 1\n", "", 1)
        text = text.replace("data_parallel_shard", "[parallelism]\ndata_parallel_shard")
    found = values(read("job.toml", text, GPUS))
    assert (found["training.compile"], found.get("training.options.components")) == (True, parts)


@pytest.mark.parametrize(("flavor", "width", "layers"), [("full", 4096, 32), ("debugmodel", 256, 2)])
def test_flavors_of_torchtitans_hub_models_change_their_dimensions(flavor: str, width: int, layers: int) -> None:
    """``full`` has the defaults of its class in place of the model's own, whose name alone was read."""
    text = TITAN.replace("llama3", "transformers_modeling_backend").replace("8B", flavor)
    text = f'{text.replace("pipeline_parallel_degree = 2", "")}\n[hf_transformers]\nmodel = "Qwen/Qwen3-4B-Instruct-2507"\n'
    found = values(read("job.toml", text, GPUS))
    overrides = found["model.overrides"]
    assert isinstance(overrides, dict)
    assert (overrides["hidden_size"], overrides["num_hidden_layers"]) == (width, layers)
    assert read("job.toml", text.replace(f'"{flavor}"', '"huge"'), GPUS).problems


def test_data_of_pictures_without_a_recipes_name() -> None:
    """Recipes of 2025 leave their own name to the command, and were jobs of text alone with a frozen tower untold."""
    text = AUTOMODEL.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-VL-3B-Instruct").replace("ddp", "fsdp2")
    data = "dataset: {_target_: nemo_automodel.components.datasets.vlm.datasets.make_rdr_dataset, seq_length: 2048}"
    said = text.replace("dataset: {seq_length: 2048}", f"{data}\nfreeze_config: {{freeze_vision_tower: true}}")
    found = values(read("r.yaml", said, GPUS))
    assert found["training.freeze"] == ["vision"]
    assert found.get("training.images.per_sample") != 0
    assert values(read("r.yaml", text, GPUS))["training.images.per_sample"] == 0
