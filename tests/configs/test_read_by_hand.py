"""Keys of trainers that plans were once made without, found by reading configs beside their plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.configs.test_trainers import AXOLOTL, FACTORY, FSDP, QLORA, SECOND, SWIFT, TRL, read, values

LIGER = f"{SWIFT.rstrip()} --use_liger_kernel true"
LORA = FACTORY.replace("full", "lora")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("", "fused-linear"),
        ("--loss_scale ignore_empty_think", "fused-linear"),
        ("--loss_scale last_round+ignore_think_prefix", "fused-linear"),
        ("--loss_scale hermes --is_binary_loss_scale true", "fused-linear"),
        ("--loss_scale hermes", "standard"),
        ("--loss_scale default+react", "standard"),
        ("--is_binary_loss_scale false", "standard"),
        ("--loss_type mine", "standard"),
        ("--enable_dft_loss true", "standard"),
        ("--enable_channel_loss true", "standard"),
        ("--sequence_parallel_size 4", "standard"),
    ],
)
def test_liger_gives_no_logits_only_where_the_model_computes_the_loss(words: str, kind: str) -> None:
    """ms-swift's trainer takes whole logits for a loss of its own, whatever Liger would do."""
    assert values(read("s.sh", f"{LIGER} {words}\n"))["training.loss.kind"] == kind


def test_new_tokens_of_ms_swift_are_a_note() -> None:
    """They enlarge the vocabulary."""
    found = read("s.sh", f"{SWIFT.rstrip()} --new_special_tokens tokens.txt\n")
    assert any("enlarge the vocabulary" in each.message for each in found.notes)


@pytest.mark.parametrize(("visible", "noted"), [("0,1,2,3,4,5,6,7", True), ("0,1,2,3", False)])
def test_a_model_that_lies_over_several_gpus_is_a_note(visible: str, noted: bool) -> None:
    """Four processes that see eight GPUs give each model two."""
    found = read("s.sh", f"CUDA_VISIBLE_DEVICES={visible} {SWIFT}")
    assert any("laid over 2 GPUs" in each.message for each in found.notes) == noted


@pytest.mark.parametrize("stage", ["gan", "cls", "embedding"])
def test_a_stage_that_factory_has_not_is_refused(stage: str) -> None:
    """A fork's own stage is no supervised training."""
    problems = read("f.yaml", FACTORY.replace("stage: sft", f"stage: {stage}")).problems
    assert any(f"`stage: {stage}`" in each.message for each in problems)


def test_factory_recomputes_as_the_trainers_own_arguments_say() -> None:
    """The Trainer turns recompute on a second time, with its own arguments."""
    key, said = "training.activation_checkpointing.reentrant", "gradient_checkpointing_kwargs: {use_reentrant: false}\n"
    assert values(read("f.yaml", FACTORY + said))[key] is True
    assert values(read("f.yaml", f"{FACTORY}gradient_checkpointing: true\n{said}"))[key] is False


def test_factory_evaluates_behind_the_training() -> None:
    """`do_eval` beside data: a pass of eight sequences, with the states of the optimizer still there."""
    found = values(read("f.yaml", f"{FACTORY}do_eval: true\neval_dataset: a\n"))
    assert found["training.evaluation.micro_batch_size"] == 8
    assert "training.evaluation.micro_batch_size" not in values(read("f.yaml", f"{FACTORY}do_eval: true\n"))


def test_adapters_of_factory_without_autocast_are_on_a_base_in_16_bits() -> None:
    """Neither bf16 nor fp16: the base is loaded in 16 bits all the same, and the adapters are upcast."""
    found = values(read("f.yaml", LORA.replace("bf16: true\n", "")))
    assert (found["training.precision.recipe"], found["training.lora.dtype"]) == ("bf16-pure", "fp32")
    assert values(read("f.yaml", FACTORY.replace("bf16: true\n", "")))["training.precision.recipe"] == "fp32"


@pytest.mark.parametrize(
    ("name", "text"), [("f.yaml", FACTORY), ("a.yml", f"{AXOLOTL}use_ray: true\n")], ids=["LLaMA-Factory", "Axolotl"]
)
def test_workers_of_ray_are_the_processes(name: str, text: str) -> None:
    """Each has a GPU."""
    from memcheck.configs.importing import import_config
    from memcheck.configs.types import ReadSetting

    found = import_config(name, f"{text}ray_num_workers: 4\n".encode(), {"hardware.gpu": ReadSetting("h200", "test")})
    assert values(found)["hardware.gpus_per_node"] == 4


def test_data_alone_does_not_make_a_training_of_factory() -> None:
    """A line that evaluates on a dataset states no step."""
    line = "python src/cli_eval.py --model_name_or_path a/b --dataset test --finetuning_type lora --template user\n"
    assert any("trains nothing" in each.message for each in read("eval.sh", line).problems)


def test_kernels_of_factorys_second_generation_are_a_note() -> None:
    """They keep less than what they are estimated as."""
    assert any(
        "LLaMA-Factory's kernels" in each.message
        for each in read("g.yaml", f"{SECOND}kernel_config: {{name: auto}}\n").notes
    )


def test_axolotl_adapts_what_is_named_beside_all_linear_layers() -> None:
    """`lora_target_linear` adds to `lora_target_modules`; an embedding there was lost."""
    found = values(read("a.yml", f"{AXOLOTL}{QLORA}lora_target_modules: [q_proj, embed_tokens]\n"))
    targets = found["training.lora.target_modules"]
    assert isinstance(targets, list)
    assert {"embed_tokens", "q_proj", "down_proj"} <= set(targets)
    assert "lm_head" not in targets
    assert (
        values(read("a.yml", f"{AXOLOTL}{QLORA}lora_target_modules: [q_proj]\n"))["training.lora.target_modules"]
        == "all-linear"
    )


@pytest.mark.parametrize("said", ["lora_embedding_kernel: true", "pretraining_dataset: [{path: c4, type: pretrain}]"])
def test_axolotl_runs_what_is_no_construct(said: str) -> None:
    """The kernel is on by default, and a stream of text is data."""
    found = read("a.yml", f"{AXOLOTL}{QLORA}{said}\n")
    assert not found.problems
    assert not [each for each in found.notes if "not a key" in each.message]


@pytest.mark.parametrize(
    ("said", "upcast"),
    [
        ("attn_implementation: sdpa\n", True),
        ("", True),
        ("eager_attention: true\n", True),
        ("attn_implementation: flash_attention_2\n", False),
        ("flash_attention: true\n", False),
        ("xformers_attention: true\n", False),
        ("attn_implementation: xformers\n", False),
        ("attn_implementation: sdpa\nplugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n", False),
        ("attn_implementation: sdpa\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", False),
        ("attn_implementation: sdpa\ndeepspeed: deepspeed_configs/zero2.json\n", False),
        (f"attn_implementation: sdpa\n{QLORA}", False),
        ("attn_implementation: sdpa\nbf16: false\n", False),
    ],
)
def test_axolotl_upcasts_embeddings_without_a_flash_attention(said: str, upcast: bool) -> None:
    """A model that is trained whole: norms, embeddings and head are made fp32, and cast back for few reasons."""
    text = AXOLOTL.replace("attn_implementation: flash_attention_2\n", "")
    text = text.replace("bf16: auto\n", "") if "bf16" in said else text
    found = values(read("a.yml", text + said))
    assert found.get("training.options.fp32_embeddings", False) is upcast


PAIRS = f"{TRL}max_prompt_length: 512\n"


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("t.yaml", f"{PAIRS}rpo_alpha: 0.1\n", True),
        ("t.yaml", f"{PAIRS}loss_type: [sigmoid, sft]\n", True),
        ("t.yaml", f"{PAIRS}loss_type: sigmoid\n", False),
        ("a.yml", f"{AXOLOTL}rl: dpo\ndpo_loss_type: [sigmoid, sft]\n", True),
        ("a.yml", f"{AXOLOTL}rl: dpo\ndpo_loss_type: [sigmoid]\n", False),
        # from the log-probabilities that are there
        ("s.sh", f"{SWIFT.rstrip().replace('swift sft', 'swift rlhf')} --rlhf_type dpo --rpo_alpha 0.1\n", False),
    ],
)
def test_a_loss_of_the_chosen_beside_dpo_is_refused(name: str, text: str, refused: bool) -> None:
    """TRL takes its cross entropy from a copy of the chosen rows' logits."""
    assert any("chosen rows" in each.message for each in read(name, text).problems) == refused


@pytest.mark.parametrize(
    ("classes", "noted"),
    [("MixtralSparseMoeBlock", True), ("MixtralDecoderLayer", False), ("JambaAttentionDecoderLayer,JambaMLP", True)],
)
def test_units_of_parts_of_layers_are_a_note(classes: str, noted: bool) -> None:
    """What else is in a layer is gathered with the whole model, and stays."""
    wrap = f"fsdp: [full_shard]\nfsdp_config: {{fsdp_transformer_layer_cls_to_wrap: '{classes}'}}\n"
    launch = FSDP.replace("{fsdp_version: 2}", f"{{fsdp_version: 2, fsdp_transformer_layer_cls_to_wrap: '{classes}'}}")
    for name, text in (("a.yml", AXOLOTL + wrap), ("l.yaml", launch)):
        assert any("parts of layers" in each.message for each in read(name, text).notes) == noted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yml", f"{AXOLOTL}device_map: auto\n"),
        ("s.sh", f"{SWIFT.rstrip()} --init_weights lora-ga\n"),
    ],
)
def test_what_changes_places_or_starts_is_a_note(name: str, text: str) -> None:
    """A model over several GPUs of a process, and adapters that start from gradients."""
    assert any("is not modelled" in each.message for each in read(name, text).notes)


def test_no_without_quotes_is_no() -> None:
    """YAML 1.1 reads it as false."""
    found = read("l.yaml", "distributed_type: NO\nmixed_precision: bf16\nnum_processes: 1\nnum_machines: 1\n")
    assert not any("distributed_type" in each.message or "``" in each.message for each in found.problems)
    assert values(found)["parallelism.zero_stage"] == 0


def test_packed_weights_that_are_priced_in_16_bits_are_said() -> None:
    """Sharded, a base of GPTQ has no memory model, and no plan says in silence that it is another one."""
    text = LORA.replace("meta-llama/Llama-3.1-8B", "hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4")
    found = read("f.yaml", f"{text}fsdp: full_shard\n")
    assert any("packed weights" in each.message for each in found.notes)
    assert not any("packed weights" in each.message for each in read("f.yaml", text).notes)
    assert values(read("f.yaml", text))["training.base.held_in"] == "gptq-4bit"


@pytest.mark.parametrize(
    ("name", "text", "noted"),
    [
        ("f.yaml", f"{LORA}adapter_name_or_path: saves/lora\n", True),
        ("f.yaml", f"{LORA}adapter_name_or_path: saves/lora\ncreate_new_adapter: true\n", False),
        ("f.yaml", f"{FACTORY}adapter_name_or_path: saves/lora\n", False),
        ("a.yml", f"{AXOLOTL}{QLORA}lora_model_dir: ./out\n", True),
        ("a.yml", f"{AXOLOTL}lora_model_dir: ./out\n", False),
    ],
)
def test_adapters_that_are_there_have_a_rank_of_their_own(name: str, text: str, noted: bool) -> None:
    """They are trained on with what their own config says."""
    assert any("adapters there" in each.message for each in read(name, text).notes) == noted


@pytest.mark.parametrize(
    ("dtype", "refused"), [("bfloat16", False), ("auto", False), ("half-ish", True), ("${DTYPE}", True)]
)
def test_a_word_that_is_no_dtype_is_not_bf16(dtype: str, refused: bool) -> None:
    """ms-swift's `torch_dtype` may be a variable that nobody sets."""
    problems = read("s.sh", f"{SWIFT.rstrip()} --torch_dtype {dtype}\n").problems
    assert any("is no dtype" in each.message or "not set" in each.message for each in problems) == refused


@pytest.mark.parametrize(
    ("folder", "model"),
    [
        ("/data/models/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("../models/Qwen2.5-7B-Instruct/", "Qwen2.5-7B-Instruct"),
        ("/out/Qwen2.5-7B-Instruct/checkpoint-400", None),
        ("/data/models/mine", None),
    ],
)
def test_a_folder_that_is_called_as_a_model_is_assumed_to_hold_it(folder: str, model: str | None) -> None:
    """Its config.json is not read, and the plan says by what it goes; any other folder is an error."""
    for name, text, own in (("s.sh", SWIFT, "Qwen/Qwen2.5-7B-Instruct"), ("t.yaml", TRL, "meta-llama/Llama-3.1-8B")):
        found = read(name, text.replace(own, folder))
        if model is None:
            assert any("is a folder" in each.message for each in found.problems)
        else:
            setting = found.settings["model.name"]
            assert (setting.value, setting.assumed) == (model, True)
            assert not any("is a folder" in each.message for each in found.problems)


@pytest.mark.parametrize("words", ["all-linear embed_tokens lm_head", "embed_tokens all-linear lm_head"])
def test_all_linear_layers_among_other_words(words: str) -> None:
    """ms-swift puts every linear layer where the word stands; it is no name that PEFT passes over."""
    found = read("s.sh", f"{SWIFT.rstrip()} --target_modules {words}\n")
    targets = values(found)["training.lora.target_modules"]
    assert isinstance(targets, list)
    assert {"q_proj", "down_proj", "embed_tokens", "lm_head"} <= set(targets)
    assert not any("all-linear" in each.message for each in found.notes)


@pytest.mark.parametrize(
    ("assigned", "noted"), [("nproc_per_node=2\n", False), ("nproc_per_node=1\n", True), ("", False)]
)
def test_processes_by_a_variable_of_the_script(assigned: str, noted: bool) -> None:
    """`NPROC_PER_NODE=$nproc_per_node`: what it holds, where the script says so."""
    line = SWIFT.replace("NPROC_PER_NODE=4", "CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=$nproc_per_node")
    found = read("s.sh", assigned + line)
    assert any("laid over 2 GPUs" in each.message for each in found.notes) == noted


@pytest.mark.parametrize(
    "other",
    ["python src/eval.py --model $OUT --max_length 9999", "CUDA_VISIBLE_DEVICES=3 python3 eval.py \\\n    --model out"],
)
def test_arguments_of_a_script_behind_the_training_are_its_own(other: str) -> None:
    """What evaluates afterwards names another model, and says nothing of the training."""
    found = values(read("s.sh", f"{SWIFT}\n{other}\n"))
    assert (found["model.name"], found["training.sequence_length"]) == ("Qwen/Qwen2.5-7B-Instruct", 2048)


def test_messages_quote_no_more_of_a_value_than_anybody_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Problems, notes and what is assumed name the place, where the rest of the value stands."""
    long = "x" * 3000
    path = tmp_path / "trl.yaml"
    path.write_text(
        f"model_name_or_path: meta-llama/Llama-3.1-8B\nmax_length: {long}\noptim: {long}\ndtype: {long}\n{long[:900]}: 1\n"
    )
    assert main(["import", "--from", "trl", "--gpu", "h100", "--gpus-per-node", "8", str(path)]) == 1
    told = capsys.readouterr().err
    assert "`max_length: xxx" in told
    assert max(map(len, told.splitlines())) < 300 + len(str(path))
