"""NeMo AutoModel's recipes: what their sections mean together, both generations of keys, launches and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting
from memcheck.judge import Gate, check_file

RECIPE: dict[str, Any] = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 4, "max_steps": 10},
    "model": {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        "pretrained_model_name_or_path": "Qwen/Qwen3-0.6B",
    },
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 1},
    "dataset": {"_target_": "nemo_automodel.components.datasets.llm.mock_iterable_dataset", "seq_len": 2048},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": "1e-5"},
}
PEFT = {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "dim": 16}


def recipe(**sections: Any) -> dict[str, Any]:
    """The recipe with other sections; those that are mappings are merged into its own."""
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in RECIPE.items()}
    for key, value in sections.items():
        below = found.get(key)
        found[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def read(name: str = "recipe.yaml", text: str = "", **sections: Any) -> Imported:
    """The import of a recipe, or of another text, on eight GPUs."""
    stated = {"hardware.gpu": "h100-80gb", "hardware.gpus_per_node": 8}
    if name.endswith(".sh"):
        stated.pop("hardware.gpus_per_node")
    written = text or yaml.safe_dump(recipe(**sections))
    return import_config(name, written.encode(), {key: ReadSetting(each, "test") for key, each in stated.items()})


def values(found: Imported) -> dict[str, object]:
    """What was read, by the plan's keys."""
    assert found.problems == ()
    return {key: each.value for key, each in found.settings.items()}


def test_a_recipe_is_recognised_and_estimated() -> None:
    """A recipe is told by its own keys, and the plan out of it is judged without an error."""
    text = yaml.safe_dump(RECIPE)
    assert detect("recipe.yaml", text) == "automodel"
    (result,), traces = check_file("plan.yaml", read().text.encode(), Gate())
    assert (traces, result.status) == ([], "passed")
    assert result.estimate is not None


def test_rows_that_are_made_up_are_full() -> None:
    """A dataset of random rows has no padding; one of conversations has."""
    assert values(read())["training.sequences"] == "packed"
    chat = {"_target_": "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset", "seq_length": 2048}
    padded = values(read(dataset=chat, model={"attn_implementation": "sdpa"}))
    assert (padded["training.sequences"], padded["training.sequence_length"]) == ("padded", 2048)


def test_both_generations_of_the_distributed_section_say_the_same() -> None:
    """`strategy: fsdp2` and `_target_: ...FSDP2Manager` are one plan."""
    older = {"_target_": "nemo_automodel.components.distributed.fsdp2.FSDP2Manager", "dp_size": "none", "tp_size": 2}
    found = recipe()
    found["distributed"] = older
    first, second = values(read(distributed={"tp_size": 2})), values(read(text=yaml.safe_dump(found)))
    assert first == second


def test_replicas_are_copies_of_a_group() -> None:
    """Two replicas of eight data ranks are groups of four; without `dp_size` the group is asked for."""
    assert values(read(distributed={"dp_size": 8, "dp_replicate_size": 2}))["parallelism.shard_group"] == 4
    (problem,) = read(distributed={"dp_replicate_size": 2}).problems
    assert problem.keys == ("parallelism.shard_group",)


@pytest.mark.parametrize(
    ("model", "extra", "mode", "modules"),
    [
        ("Qwen/Qwen3-0.6B", {}, "selective", ["self_attn", "mlp", "input_layernorm", "post_attention_layernorm"]),
        ("Qwen/Qwen3-0.6B", {"force_hf": True}, "full", None),
        ("microsoft/Phi-4-mini-instruct", {}, "full", None),
    ],
)
def test_whose_layers_are_recomputed_as_a_whole(
    model: str, extra: dict[str, Any], mode: str, modules: list[str] | None
) -> None:
    """Layers of AutoModel's own classes are wrapped in four parts, transformers' layers as a whole."""
    written = {"pretrained_model_name_or_path": model, **extra}
    found = values(read(model=written, distributed={"activation_checkpointing": True}))
    assert found["training.activation_checkpointing.mode"] == mode
    assert found.get("training.activation_checkpointing.modules") == modules


def test_a_pipeline_takes_a_batch_in_parts() -> None:
    """The micro-batch is the pipeline's; 28 layers in threes are 10 stages, rounded up to three on each of four ranks."""
    pipeline = {"pp_schedule": "interleaved1f1b", "pp_microbatch_size": 1, "layers_per_stage": 3}
    pipeline["round_virtual_stages_to_pp_multiple"] = "up"
    found = values(read(distributed={"pp_size": 4, "pipeline": pipeline}))
    assert found["training.micro_batch_size"] == 1
    assert found["training.options.micro_batches_per_run"] == 4
    assert found["parallelism.virtual_stages"] == 3
    assert found["parallelism.reshard_after_forward"] is False


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("*_proj", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        (["*.q_proj", "*.v_proj"], ["q_proj", "v_proj"]),
        (["q_proj"], ["q_proj"]),
    ],
)
def test_patterns_of_adapters_are_matched_with_the_model(targets: object, expected: list[str]) -> None:
    """A star stands for any part of a layer's whole name."""
    found = values(read(peft={**PEFT, "target_modules": targets}))
    assert found["training.lora.target_modules"] == expected
    assert (found["training.lora.rank"], found["training.lora.dtype"]) == (16, "bf16")


def test_adapters_that_a_kernel_reads_past_rest_beside_it() -> None:
    """Mamba's kernel is handed the weight of ``out_proj``: its adapters have no gradient, and are listed by size."""
    model = {"pretrained_model_name_or_path": "tiiuae/Falcon-H1-7B-Instruct"}
    found = read(model=model, peft={**PEFT, "target_modules": "*_proj"})
    assert "out_proj" not in found.settings["training.lora.target_modules"].value
    (note,) = [each.message for each in found.notes if "out_proj" in each.message]
    hidden, inner, layers = 3072, 3072, 44
    assert f"{2 * 16 * (hidden + inner) * layers / 2**20:.0f} MiB" in note


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("*.layers.0.*_proj", "some layers and not on others"),
        ("no_such_proj", "fits no linear layer"),
        ("(.*)_proj", "are not told apart"),
    ],
)
def test_adapters_that_no_plan_can_say_are_refused(targets: str, said: str) -> None:
    """Adapters on some layers, on nothing, or by an expression are errors at the pattern."""
    (problem,) = read(peft={**PEFT, "target_modules": targets}).problems
    assert said in problem.message
    assert problem.keys == ("training.lora.target_modules",)


@pytest.mark.parametrize(
    ("said", "without"),
    [
        ({"match_all_linear": True}, set()),
        ({"target_modules": "*"}, set()),
        ({"exclude_modules": ["*.o_proj"]}, {"o_proj"}),
        ({"exclude_modules": ["*lm_head*", "*.mlp.*"]}, {"lm_head", "gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_every_linear_layer_is_the_head_too(said: dict[str, object], without: set[str]) -> None:
    """What is left out leaves an adapter on every other linear layer, and the head is one."""
    every = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
    found = values(read(peft={**PEFT, **said}))["training.lora.target_modules"]
    assert set(found) == every - without


def test_a_quantized_base_is_qlora() -> None:
    """`load_in_4bit` makes it QLoRA, whose other weights stay in 16 bits."""
    found = values(read(peft=PEFT, quantization={"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}))
    assert found["training.method"] == "qlora"
    assert found["training.options.prepare_model_for_kbit_training"] is False


@pytest.mark.parametrize(
    ("written", "master"),
    [
        ({}, "fp32"),
        ({"master_weights": False}, None),
        ({"master_weights": False, "store_param_remainders": True}, None),
        ({"store_param_remainders": True}, "remainder"),
        ({"master_weights": True, "store_param_remainders": True}, "remainder"),
        ({"store_param_remainders": True, "master_weight_dtype": "torch.bfloat16"}, "fp32"),
    ],
)
def test_transformer_engines_adam_has_weights_of_its_own(written: dict[str, Any], master: str | None) -> None:
    """FusedAdam keeps fp32 weights beside weights of 16 bits, or what these lack of them, unless told otherwise."""
    target = {"_target_": "transformer_engine.pytorch.optimizers.FusedAdam", **written}
    assert values(read(optimizer=target)).get("training.precision.master") == master


@pytest.mark.parametrize(
    ("written", "implementation"), [({}, "foreach"), ({"foreach": False}, "for-loop"), ({"fused": True}, "fused")]
)
def test_how_adam_goes_through_the_weights_is_read(written: dict[str, Any], implementation: str) -> None:
    """torch.optim's own choice is foreach, which takes a copy of all states' updates that a loop does not."""
    found = values(read(optimizer={"_target_": "torch.optim.Adam", **written}))
    assert found["training.optimizer.implementation"] == implementation


def test_a_variable_of_the_environment_has_a_default_or_is_asked_for() -> None:
    """`${oc.env:NAME,8}` is 8; one without a default is an error where it decides a size."""
    batch = {"local_batch_size": "${oc.env:LOCAL,2}"}
    assert values(read(step_scheduler=batch))["training.micro_batch_size"] == 2
    problems = read(step_scheduler={"local_batch_size": "${oc.env:LOCAL}"}).problems
    assert any("is a variable of the environment" in each.message for each in problems)
    assert values(read(wandb={"name": "${oc.env:NAME}"}))["training.micro_batch_size"] == 4


def test_evaluation_is_a_moment_of_its_own() -> None:
    """The pass of the validation set takes its loader's batch, and keeps the loss alone."""
    loader = {"batch_size": 16}
    steps = {"val_every_steps": 10}
    found = values(read(validation_dataset={"split": "test"}, validation_dataloader=loader, step_scheduler=steps))
    assert found["training.evaluation.micro_batch_size"] == 16
    assert found["training.evaluation.logits"] == "dropped"


def test_what_a_launch_says_takes_the_place_of_the_recipes(tmp_path: Path) -> None:
    """`-c recipe.yaml --key value`: both commands name the file, whose values the others replace."""
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    line = "torchrun --nproc-per-node 8 -m nemo_automodel.cli.app -c recipe.yaml --step_scheduler.local_batch_size 2\n"
    name = str(tmp_path / "run.sh")
    assert detect(name, line) == "automodel"
    found = values(read(name, line))
    assert (found["training.micro_batch_size"], found["hardware.gpus_per_node"]) == (2, 8)
    assert found["training.global_batch_size"] == 64
    older = "automodel finetune llm -c recipe.yaml --nproc-per-node=4 \\\n  --distributed.tp_size=2\n"
    found = values(read(name, older))
    assert (found["parallelism.tensor"], found["hardware.gpus_per_node"]) == (2, 4)


def test_a_launch_whose_recipe_is_not_there_says_so(tmp_path: Path) -> None:
    """A file that the command names and nobody finds is an error by its name."""
    with pytest.raises(ConfigError, match=r"there is no `recipe\.yaml`"):
        read(str(tmp_path / "run.sh"), "automodel recipe.yaml --nproc-per-node 8\n")


def test_liger_and_hidden_states_count_in_transformers_classes_alone() -> None:
    """AutoModel's own classes take neither: what they return of hidden states rests anyway. Recomputed layers keep
    their inputs; only layers of transformers' that are not recomputed hold more than is estimated.
    """
    flags = {"use_liger_kernel": True, "output_hidden_states": True}
    their = read(model={"pretrained_model_name_or_path": "mistralai/Mistral-7B-v0.3", **flags})
    assert values(their)["training.kernels.liger"] == ["rope", "rms_norm", "glu"]
    assert [each.message.split("`")[1] for each in their.notes] == ["model.output_hidden_states"]
    own = read(model={"pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B", **flags})
    assert "training.kernels.liger" not in values(own)
    forced = read(
        model={"pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B", "force_hf": True, **flags},
        distributed={"strategy": "fsdp2", "activation_checkpointing": True},
    )
    assert values(forced)["training.kernels.liger"]
    assert not own.notes
    assert not forced.notes


def test_layers_for_further_tokens_are_those_of_the_checkpoint_unless_the_recipe_says_none() -> None:
    """AutoModel's own Qwen3.5 and Nemotron-H train them where the configuration has some; transformers' have none."""
    for name, has in (
        ("Qwen/Qwen3.5-27B", True),
        ("Qwen/Qwen3.5-4B", True),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", True),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", False),
        ("Qwen/Qwen3-8B", False),
    ):
        found = read(model={"pretrained_model_name_or_path": name}).problems
        assert any("further tokens" in each.message for each in found) == has, name
        for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
            for section in ({key: 0}, {"text_config": {key: 0}}):
                assert not read(model={"pretrained_model_name_or_path": name, **section}).problems
            (problem,) = read(model={"pretrained_model_name_or_path": name, "text_config": {key: 1}}).problems
            assert "further tokens" in problem.message
        forced = {"pretrained_model_name_or_path": name, "force_hf": True}
        assert not [each for each in read(model=forced).problems if "further tokens" in each.message]


@pytest.mark.parametrize(
    "target",
    ["nemo_automodel.components.models.gemma4_drafter.composite.Gemma4WithDrafter.from_pretrained",
     "nemo_automodel.components.models.gpt2.build_gpt2_model"],
)  # fmt: skip
def test_what_builds_more_than_the_model_that_it_names_is_refused(target: str) -> None:
    """A drafter that is trained beside its base, or a model whose sizes are arguments: a plan of the base is neither."""
    found = read(
        model={"_target_": target, "pretrained_model_name_or_path": "google/gemma-3-1b-it", "drafter_path": "x"}
    )
    assert any(target in each.message and each.location is not None for each in found.problems)
    own = "nemo_automodel.components.models.llama.model.LlamaForCausalLM.from_pretrained"
    assert not read(model={"_target_": own}).problems


def test_kernels_of_kimis_attention_are_no_dimensions() -> None:
    """`kda_mode` and its like choose among kernels: the model is the catalog's."""
    name = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
    config = {"kda_mode": "chunk", "kda_use_fused_gate": True}
    found = values(read(model={"pretrained_model_name_or_path": name, "config": config}))
    assert found["model.name"] == name
    assert "model.overrides" not in found
