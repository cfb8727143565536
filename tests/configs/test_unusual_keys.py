"""Keys that hardly a config has and that decide a size: each is read, refused by its name, or noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.configs import test_read_automodel as automodel
from tests.configs import test_torchtune as torchtune
from tests.configs.test_trainers import AXOLOTL, FACTORY, QLORA, SWIFT, TRL, read, values

PAIRS = "rl: dpo\n"
MIXER = "plugins: [axolotl.integrations.densemixer.DenseMixerPlugin]\n"
LORA = "finetuning_type: lora\n"


@pytest.mark.parametrize(
    ("keys", "key", "value"),
    [
        (f"{QLORA}{PAIRS}rl_adapter_ref_model: true\n", "training.reference", "resident"),
        (f"{PAIRS}precompute_ref_log_probs: true\n", "training.reference", "resident"),
        (f"{QLORA}{PAIRS}", "training.reference", "adapter-off"),
        ("overrides_of_model_config: {num_hidden_layers: 40}\n", "model.overrides", {"num_hidden_layers": 40}),
        ("overrides_of_model_config: {rope_scaling: {factor: 2}}\n", "model.overrides", None),
        (f"{QLORA}bnb_config_kwargs: {{bnb_4bit_use_double_quant: false}}\n", "training.base.double", False),
    ],
)
def test_a_key_of_axolotl_that_few_configs_have_is_read(keys: str, key: str, value: object) -> None:
    """A reference beside adapters is a second model, as is one that full training is given whatever is precomputed;
    changed dimensions and constants in fp32 reach the plan, and what has no size does not.
    """
    found = read("a.yml", AXOLOTL + keys)
    assert not found.problems
    setting = found.settings.get(key)
    assert (setting.value if setting is not None else None) == value


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.yml", f"{AXOLOTL}{MIXER}", "DenseMixer"),
        ("a.yml", f"{AXOLOTL}plugins: [axolotl.integrations.llm_compressor.LLMCompressorPlugin]\n", "masks"),
        ("a.yml", f"{AXOLOTL}kd_trainer: true\n", "distillation"),
        (
            "f.yaml",
            f"{FACTORY.replace('finetuning_type: full', LORA)}mixture_of_depths: convert\n",
            "mixture of depths",
        ),
        ("s.sh", f"{SWIFT.rstrip()} --trainable_parameters_regex '.*norm.*'\n", "trainable_parameters_regex"),
        ("s.sh", f"{SWIFT.rstrip()} --target_regex '.*layers.(1|2)\\..*q.*'\n", "in some layers"),
        ("s.sh", f"{SWIFT.rstrip()} --optimizer galore\n", "optimizer: galore"),
        ("s.sh", f"{SWIFT.rstrip()} --callbacks early_stop lisa\n", "callback `lisa`"),
        ("s.sh", f"{SWIFT.rstrip()} --zero_hpz_partition_size 4\n", "a second copy"),
    ],
)
def test_a_construct_without_a_memory_model_is_refused_by_its_name(name: str, text: str, word: str) -> None:
    """No plan comes of a config with a switch that is a word, a plugin, or a pattern that nothing here reads."""
    assert any(word in each.message for each in read(name, text).problems)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("s.sh", f"{SWIFT.rstrip()} --tuner_backend unsloth\n", "unsloth's own kernels"),
        ("t.yaml", f"{TRL}full_determinism: true\n", "deterministic kernels"),
        ("d.json", '{"zero_optimization": {"stage": 1}, "autotuning": {"enabled": true}}', "the tuner's own stages"),
    ],
)
def test_what_moves_memory_and_has_no_key_is_a_note(name: str, text: str, word: str) -> None:
    """Neither silent nor a refusal: the plan is of the job without it, and says so."""
    assert any(word in each.message for each in read(name, text).notes)


def test_a_plugin_that_its_own_switch_turns_off_is_no_construct() -> None:
    """DenseMixer patches the model unless `dense_mixer` is false."""
    assert not read("a.yml", f"{AXOLOTL}{MIXER}dense_mixer: false\n").problems


@pytest.mark.parametrize(
    ("words", "size"),
    [("--split_dataset_ratio 0.1", 1), ("--val_dataset a --save_strategy no", None), ("--eval_strategy steps", None)],
)
def test_ms_swift_evaluates_where_there_is_data_for_it(words: str, size: int | None) -> None:
    """`eval_strategy` is `save_strategy`, which is by steps, and without data held out there is no pass at all."""
    found = read("s.sh", f"{SWIFT.rstrip()} {words}\n").settings.get("training.evaluation.micro_batch_size")
    assert (found.value if found is not None else None) == size


def test_muon_goes_before_the_optimizer_that_optim_names() -> None:
    """ms-swift's `optimizer: muon` is what steps."""
    found = read("s.sh", f"{SWIFT.rstrip()} --optimizer muon\n").settings
    assert found["training.optimizer.name"].value == "muon"
    assert "training.optimizer.implementation" not in found


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"optimizer": {"_target_": "torch.optim.AdamW", "amsgrad": True}}, "a third state"),
        ({"model": {"num_hidden_layers": 4}}, "a dimension among the arguments"),
    ],
)
def test_what_automodel_changes_of_states_and_dimensions_is_refused(lines: dict[str, Any], said: str) -> None:
    """No estimate leaves out a state, and none is of another model than the one that is built."""
    (problem,) = automodel.read(**lines).problems
    assert said in problem.message


def test_automodel_keeps_a_momentum_and_constants_in_fp32() -> None:
    """SGD with momentum has a state, and 4-bit weights whose constants are not quantised again are larger."""
    found = automodel.read(
        optimizer={"_target_": "torch.optim.SGD", "momentum": 0.9},
        peft=automodel.PEFT,
        quantization={"load_in_4bit": True, "bnb_4bit_use_double_quant": False},
    ).settings
    assert found["training.optimizer.name"].value == "sgd-momentum"
    assert found["training.base.double"].value is False


def test_a_third_state_of_torchtune_is_refused() -> None:
    """`amsgrad` keeps the highest second moment beside both."""
    text = torchtune.RECIPE.replace("fused: true", "fused: true, amsgrad: true")
    said = [each.message for each in torchtune.read(text).problems]
    assert any("a third state" in each for each in said)


RLHF = SWIFT.replace("swift sft", "swift rlhf").replace("NPROC_PER_NODE=4", "NPROC_PER_NODE=8")


@pytest.mark.parametrize(
    ("words", "objective", "reference"),
    [
        ("", "dpo", "adapter-off"),
        ("--rlhf_type dpo --train_type full", "dpo", "resident"),
        ("--rlhf_type kto", "kto", "adapter-off"),
        ("--rlhf_type orpo", "orpo", None),
        ("--rlhf_type simpo", "cpo", None),
        ("--rlhf_type simpo --cpo_alpha 0", "simpo", None),
        ("--rlhf_type cpo --loss_type simpo", "cpo", None),
        ("--rlhf_type rm", "reward", None),
    ],
)
def test_ms_swift_optimizes_what_its_type_is_by_default(words: str, objective: str, reference: str | None) -> None:
    """SimPO is a loss of CPO's trainer with a cross-entropy beside it, unless `cpo_alpha` is 0 (rlhf_args.py)."""
    found = read("s.sh", f"{RLHF.rstrip()} {words}\n")
    assert found.problems == ()
    said = {key: setting.value for key, setting in found.settings.items()}
    assert (said["training.objective.name"], said.get("training.reference")) == (objective, reference)
    assert said["training.trainer.name"] == "ms-swift"


def test_a_model_in_fp32_is_trained_in_fp16() -> None:
    """ms-swift's `torch_dtype: float32` turns `fp16` on, unless that is stated."""
    wide = f"{SWIFT.rstrip()} --train_type full --torch_dtype float32"
    found = [read("s.sh", f"{wide}{more}\n").settings for more in ("", " --fp16 false")]
    assert [each["training.precision.recipe"].value for each in found] == ["fp16-mixed", "fp32"]


def test_another_command_of_a_script_lends_nothing() -> None:
    """`swift infer` behind the training names its checkpoint, and another batch."""
    more = "\nCUDA_VISIBLE_DEVICES=0 \\\nswift infer \\\n    --model out/checkpoint-1 --per_device_train_batch_size 64 --stream true\n"
    alone, both = read("s.sh", SWIFT), read("s.sh", SWIFT + more)
    assert (both.problems, both.notes) == (alone.problems, alone.notes)
    assert {k: s.value for k, s in both.settings.items()} == {k: s.value for k, s in alone.settings.items()}


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ("--packing true --packing_length 8192", 8192),
        ("--packing true --packing_length 1024", 2048),
        ("--packing_length 8192", 2048),
    ],
)
@pytest.mark.parametrize("command", ["swift sft", "megatron sft"])
def test_a_packed_row_is_as_long_as_the_packing_or_a_sample(command: str, words: str, length: int) -> None:
    """ms-swift's `packing_length` is what rows are filled to; a longer sample is a row of its own."""
    found = read("s.sh", f"{SWIFT.replace('swift sft', command).rstrip()} {words}\n").settings
    assert found["training.sequence_length"].value == length


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ({"activation_checkpointing": True}, "training.activation_checkpointing.mode", "full"),
        ({"reshard_after_forward": False}, "parallelism.reshard_after_forward", False),
        ({"cpu_ram_efficient_loading": True}, "training.initialization.place", "rank0"),
        ({"offload_params": True}, "training.offload.parameters", "cpu"),
    ],
)
def test_ms_swifts_file_of_fsdp_is_read(tmp_path: Path, section: dict[str, bool], key: str, value: object) -> None:
    """`--fsdp fsdp2.json` holds the words and their section; without it there is no plan."""
    launch = f"{SWIFT.replace('NPROC_PER_NODE=4', '').strip()} --gradient_checkpointing false --fsdp fsdp2.json\n"
    name = str(tmp_path / "s.sh")
    assert any("there is no `fsdp2.json`" in each.message for each in read(name, launch).problems)
    whole = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **section}}
    (tmp_path / "fsdp2.json").write_text(json.dumps(whole))
    found = read(name, launch)
    assert found.problems == ()
    assert found.settings[key].value == value


def test_activations_that_ms_swift_offloads_are_a_note(tmp_path: Path) -> None:
    """Its callback has no memory model: what is estimated holds them."""
    (tmp_path / "f.json").write_text('{"fsdp": "full_shard", "fsdp_config": {"activation_cpu_offload": true}}')
    (note,) = read(str(tmp_path / "s.sh"), f"{SWIFT.replace('NPROC_PER_NODE=4', '').strip()} --fsdp f.json\n").notes
    assert "`activation_cpu_offload`" in note.message


@pytest.mark.parametrize("words", ["--callbacks early_stop activation_cpu_offload", "--adapters out/checkpoint-1"])
def test_what_ms_swift_adds_to_a_job_is_a_note(words: str) -> None:
    """Offloaded activations, and adapters that have a rank of their own, were taken for harmless."""
    plain, found = (read("s.sh", f"{SWIFT.rstrip()} {more}\n").notes for more in ("", words))
    assert len(found) == len(plain) + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.json", '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}'),
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: cpu}\n"),
    ],
)
def test_parameters_are_offloaded_by_stage_three_alone(name: str, text: str) -> None:
    """Below it the engine does not read that section: the job runs, and its parameters are on the GPU."""
    found = read(name, text)
    assert any("stage 3 alone" in each.message for each in found.notes)
    assert "training.offload.parameters" not in values(found)
    third = read(name, text.replace('"stage": 2', '"stage": 3').replace("zero_stage: 2", "zero_stage: 3"))
    assert values(third)["training.offload.parameters"] == "cpu"
