"""One key more that stood among those of no size, or below a prefix of them: it is read, refused or listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.test_trainers import AXOLOTL, FACTORY, SWIFT, read, values

FULL, TRAIN = FACTORY, FACTORY.replace("finetuning_type: full", "finetuning_type: lora")
TRL = """\
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_name: trl-lib/Capybara
max_length: 1000
per_device_train_batch_size: 4
learning_rate: 2.0e-5
bf16: true
"""
ADAPTED = f"{TRL}use_peft: true\nlora_target_modules: all-linear\n"
SHARDED = f"{TRL}fsdp: full_shard\ngradient_accumulation_steps: 4\n"
OPEN = TRL.replace("dataset_name: trl-lib/Capybara", "dataset_mixer_list: [a/b, 1.0]")
PAIRS = f"{TRL}beta: 0.1\n"
LORA = f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_linear: true\n"
QWEN = AXOLOTL.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-VL-7B-Instruct")
LAUNCH = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
SCRIPT = """\
torchrun --nproc_per_node 4 train.py --model_name_or_path meta-llama/Llama-3.1-8B --data_path data.json \\
  --model_max_length 1000 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --bf16 True \\
  --learning_rate 2e-5 --num_train_epochs 1 --output_dir out
"""
RECOMPUTE = "training.activation_checkpointing"
KWARGS = "gradient_checkpointing: true\ngradient_checkpointing_kwargs: "
SYNC = "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}"
STARTS = "before the first step"

READ: list[tuple[str, str, str, str, object]] = [
    ("t.yaml", TRL, f"{KWARGS}{{every_n_layers: 2}}", f"{RECOMPUTE}.every_n_layers", 2),
    ("a.yml", AXOLOTL, f"{KWARGS}{{every_n_layers: 2, use_reentrant: false}}", f"{RECOMPUTE}.every_n_layers", 2),
    ("t.yaml", TRL, f"{KWARGS}{{offload: true}}", f"{RECOMPUTE}.offload", "cpu"),
    ("t.yaml", SHARDED, SYNC, "training.options.sync_each_batch", True),
    ("t.yaml", TRL, SYNC, "training.options.sync_each_batch", None),
    ("t.yaml", TRL, "torch_compile_backend: inductor", "training.compile", True),
    ("t.yaml", TRL, "torchdynamo: inductor", "training.compile", True),
    ("t.yaml", TRL, "pad_to_multiple_of: 512", "training.sequence_length", 1024),
    ("t.yaml", TRL, "pad_to_multiple_of: 8", "training.sequence_length", 1000),
    ("o.yaml", OPEN, "use_flash_attn: false", "training.attention", "sdpa"),
    ("o.yaml", OPEN, "use_flash_attn: true", "training.attention", "flash"),
    ("t.yaml", f"{ADAPTED}load_in_4bit: true\n", "use_nested_quant: true", "training.base.double", None),
    ("t.yaml", f"{ADAPTED}load_in_4bit: true\n", "use_nested_quant: false", "training.base.double", False),
    ("l.yaml", TRAIN, "resize_vocab: true", "training.lora.modules_to_save", ["embed_tokens", "lm_head"]),
    ("l.yaml", TRAIN, "add_special_tokens: <a>,<b>", "training.lora.modules_to_save", ["embed_tokens", "lm_head"]),
    ("l.yaml", TRAIN, "add_tokens: a\nadditional_target: lm_head", "training.lora.modules_to_save", ["lm_head"]),
    ("l.yaml", FULL, "use_liger_kernel: true", "training.loss.kind", "fused-linear"),
    ("a.yml", AXOLOTL, "num_labels: 20", "training.head.labels", 20),
    ("a.yml", LORA, "peft_autocast_adapter_dtype: false", "training.lora.dtype", "bf16"),
    (
        "a.yml",
        AXOLOTL,
        "fsdp: [full_shard]\nexperimental_skip_move_to_device: false",
        "training.initialization.place",
        "device",
    ),
    ("s.sh", SWIFT, "--task_type seq_cls --num_labels 20", "training.head.labels", 20),
    ("s.sh", SWIFT, "--deepspeed zero2 --deepspeed_autotp_size 2", "parallelism.tensor", 2),
    ("c.yaml", LAUNCH, "parallelism_config: {parallelism_config_tp_size: 2}", "parallelism.tensor", 2),
    ("t.sh", SCRIPT, "--lora True --lora_r 16 --lora_target_modules q_proj", "training.method", "lora"),
    ("t.sh", SCRIPT, "--qlora True --lora_r 16 --lora_target_modules q_proj", "training.method", "qlora"),
    ("t.sh", SCRIPT, "--use_lora False --lora_r 16", "training.method", "full"),
]
NOTED: list[tuple[str, str, str, str]] = [
    ("t.yaml", TRL, "optim_args: block_size=64", "arguments of the optimizer"),
    ("t.yaml", TRL, "half_precision_backend: apex", "apex"),
    ("t.yaml", TRL, "use_cache: true", "a cache copies"),
    ("t.yaml", TRL, "low_cpu_mem_usage: false", "in host memory"),
    ("t.yaml", TRL, "chat_template_path: Qwen/Qwen3-8B", "enlarge the vocabulary"),
    ("t.yaml", ADAPTED, "lora_bias: all", "biases"),
    ("t.yaml", ADAPTED, "init_lora_weights: pissa", STARTS),
    ("t.yaml", SHARDED, "fsdp_transformer_layer_cls_to_wrap: LlamaMLP", "parts of layers"),
    ("t.yaml", PAIRS, "precompute_ref_log_probs: true\nprecompute_ref_batch_size: 16", "16 pairs"),
    ("l.yaml", TRAIN, "new_special_tokens_config: tokens.yaml", "enlarge the vocabulary"),
    ("l.yaml", TRAIN, "pissa_init: true", STARTS),
    ("a.yml", LORA, "peft_init_lora_weights: pissa", STARTS),
    ("a.yml", LORA, "peft: {loftq_config: {loftq_bits: 4}}", STARTS),
    ("a.yml", AXOLOTL, "dpo_padding_free: true", "upper bound"),
    ("a.yml", AXOLOTL, "dpo_use_liger_kernel: true", "upper bound"),
    ("a.yml", LORA, "peft_ensure_weight_tying: true", "upper bound"),
    ("a.yml", AXOLOTL, "torch_compile: true\ntorch_compile_backend: aot_eager", "another backend"),
    ("a.yml", AXOLOTL, "trainer_cls: own.Trainer", "a trainer of one's own"),
    ("a.yml", AXOLOTL, "special_tokens: {additional_special_tokens: [<a>]}", "enlarge the vocabulary"),
    ("a.yml", LORA, "qlora_sharded_model_loading: true", "shard by shard"),
    ("a.yml", QWEN, "processor_type: AutoProcessor\nprocessor_kwargs: {max_pixels: 9000000}", "size of pictures"),
    ("a.yml", AXOLOTL, "model_config: {output_router_logits: true}", "second output of every layer"),
    ("s.sh", SWIFT, "--callbacks own", "a callback of one's own"),
    ("s.sh", SWIFT, "--init_weights pissa", STARTS),
    ("s.sh", SWIFT, "--quant_bits 4 --quant_method bnb --bnb_4bit_compute_dtype float32", "dequantized to fp32"),
    ("c.yaml", LAUNCH, "dynamo_config: {dynamo_use_regional_compilation: true}", "compiled"),
    ("c.yaml", LAUNCH.replace("bf16", "fp8"), "fp8_config: {enable_fsdp_float8_all_gather: true}", "gathered in fp8"),
]
REFUSED: list[tuple[str, str, str, str]] = [
    ("t.yaml", TRL, "accelerator_config: {split_batches: true}", "cut over all GPUs"),
    ("t.yaml", TRL, "use_cpu: true", "runs on no GPU"),
    ("t.yaml", PAIRS, "use_weighting: true", "weights"),
    ("a.yml", AXOLOTL, "rl: dpo\ndpo_use_weighting: true", "weights"),
    ("t.yaml", TRL, "lora_rank: 64\nlora_dropout: 0.05", "no switch"),
    ("t.yaml", TRL, "train_mode: qlora", "no switch"),
    ("t.sh", SCRIPT, "--tuning lora", "no switch"),
    ("t.yaml", TRL, "parallelism_config: {tp_size: 2}", "degrees of the Trainer's own"),
    ("t.sh", SCRIPT, "--medusa_num_heads 3", "heads or experts"),
    ("t.sh", SCRIPT, "--moe_calculator_score_scale_factor 2.0", "heads or experts"),
    ("t.sh", SCRIPT, "--do_eval", "trains nothing"),
    ("t.sh", SCRIPT, "--bits 4", "no switch"),
    ("t.sh", SCRIPT, "--lora_r 16", "no switch"),
    ("a.yml", AXOLOTL, "base_model_config: Qwen/Qwen2.5-7B", "decides its dimensions"),
    ("l.yaml", FULL.replace("stage: sft", "stage: dpo"), "ref_model: Qwen/Qwen2.5-0.5B", "other dimensions"),
]


def with_more(name: str, text: str, more: str) -> str:
    """A config with further keys, or a command with further arguments."""
    return f"{text.rstrip()} {more}\n" if name.endswith(".sh") else f"{text}{more}\n"


@pytest.mark.parametrize(("name", "text", "more", "key", "value"), READ)
def test_it_is_in_the_plan(name: str, text: str, more: str, key: str, value: object) -> None:
    """The plan has it; None: it has no effect in this job."""
    answers = {"training__objective": "sft", "training__precision__params": "bf16"} if name == "t.sh" else {}
    assert values(read(name, with_more(name, text, more), **answers)).get(key) == value


@pytest.mark.parametrize(("name", "text", "more", "said"), NOTED)
def test_it_is_listed(name: str, text: str, more: str, said: str) -> None:
    """What the estimate lacks of it is said, and not without it."""
    assert not any(said in each.message for each in read(name, text).notes)
    assert any(said in each.message for each in read(name, with_more(name, text, more)).notes)


@pytest.mark.parametrize(("name", "text", "more", "said"), REFUSED)
def test_it_is_an_error(name: str, text: str, more: str, said: str) -> None:
    """There is no plan of it."""
    assert not any(said in each.message for each in read(name, text).problems)
    assert any(said in each.message for each in read(name, with_more(name, text, more)).problems)


def test_an_unknown_script_that_is_silent_on_its_precision_is_asked() -> None:
    """Whether it loads fp32 or bf16 is a line of its own; the examples of transformers leave it to the release."""
    silent = SCRIPT.replace(" --bf16 True", "")
    assert any("the precision" in each.message for each in read("t.sh", silent).problems)
    assert not any("the precision" in each.message for each in read("t.sh", SCRIPT).problems)
    plain = silent.replace("--data_path", "--train_file").replace("--model_max_length", "--block_size")
    example = with_more("t.sh", plain.replace("train.py", "run_clm.py"), "--do_train")
    assert not any("the precision" in each.message for each in read("t.sh", example).problems)


def test_what_cuts_a_batch_is_settled_by_the_plan() -> None:
    """Stated beside the config, the micro-batch is what one GPU gets."""
    text = with_more("t.yaml", TRL, "accelerator_config: {split_batches: true}")
    assert values(read("t.yaml", text, training__micro_batch_size=1))["training.micro_batch_size"] == 1


@pytest.mark.parametrize(("written", "noted"), [("0.0", False), ("0", False), ("0.1", True)])
def test_a_number_on_a_command_line_is_its_value(written: str, noted: bool) -> None:
    """``--router_aux_loss_coef 0.0`` is its default."""
    found = read("s.sh", with_more("s.sh", SWIFT, f"--router_aux_loss_coef {written}"))
    assert any("router" in each.message for each in found.notes) == noted


@pytest.mark.parametrize("written", ["false", "False", "true"])
def test_a_switch_on_a_command_line_is_no_word(written: str) -> None:
    """``--enable_dft_loss false`` is its default, though it is text."""
    found = read("s.sh", with_more("s.sh", SWIFT, f"--enable_dft_loss {written}"))
    assert any("DFT" in each.message for each in found.notes) == (written == "true")


@pytest.mark.parametrize(
    ("path", "objective"),
    [
        ("train_configs/dpo/default.yaml", "dpo"),
        ("recipes/kto/config.yaml", "kto"),
        ("recipes/sft/config_for_dpo.yaml", None),
        ("recipes/zephyr/config.yaml", None),
    ],
)
def test_a_recipe_without_a_key_of_preferences_is_what_its_folder_is_called(path: str, objective: str | None) -> None:
    """open-instruct's DPO has defaults for all of its own keys."""
    assert values(read(path, TRL)).get("training.objective.name") == objective


def test_open_instructs_switches_of_deepspeed_are_an_engine() -> None:
    """Its DPO builds the engine's config itself."""
    more = "dpo_beta: 5\nzero_stage: 3\noffload_optimizer: true\n"
    found = values(read("o.yaml", f"{TRL}{more}"))
    assert found["training.framework"] == "deepspeed"
    assert found["parallelism.zero_stage"] == 3
    assert found["training.optimizer.offload"] == "cpu"
    assert found["training.options.zero_hpz_partition_size"] == 8


def test_open_instructs_reward_models_have_a_length_of_their_own() -> None:
    """``max_token_length`` of its older script."""
    text = TRL.replace("max_length: 1000", "max_token_length: 512").replace("dataset_name", "dataset_mixer_list")
    assert values(read("o.yaml", text))["training.sequence_length"] == 512


@pytest.mark.parametrize("name", ["nvidia/Llama-3.1-8B-Instruct-NVFP4", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"])
def test_packed_weights_of_any_kind_are_said(name: str) -> None:
    """What the files of such a repository hold is estimated in 16 bits."""
    text = ADAPTED.replace("meta-llama/Llama-3.1-8B", name)
    assert any("packed weights" in each.message for each in read("t.yaml", text).notes)


def test_distillation_of_ms_swift_is_refused() -> None:
    """It generates between its steps, and has a teacher."""
    text = SWIFT.replace("swift sft", "swift rlhf --rlhf_type gkd --teacher_model Qwen/Qwen2.5-14B-Instruct")
    assert any("a teacher" in each.message for each in read("s.sh", text).problems)


def test_an_engines_file_says_what_accelerates_section_says_beside_it() -> None:
    """Nothing of the section is unknown, though the file counts."""
    text = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: none.json, "
    found = read("c.yaml", text + "gradient_accumulation_steps: 2}\n")
    assert found.problems
    assert not any("not a key" in each.message for each in found.notes)


def test_the_engines_own_switch_and_file_are_an_engine(tmp_path: Path) -> None:
    """``--deepspeed --deepspeed_config FILE`` are the arguments of DeepSpeed's parser; the switch alone says nothing."""
    (tmp_path / "zero2.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    script = (
        "deepspeed --num_gpus 8 run_clm.py --do_train --model_name_or_path meta-llama/Llama-3.1-8B --block_size 512 "
    )
    script += "--per_device_train_batch_size 1 --learning_rate 1e-5 --bf16 true "
    name = str(tmp_path / "s.sh")
    for words in (
        "--deepspeed --deepspeed_config zero2.json",
        "--deepspeed_config zero2.json",
        "--deepspeed zero2.json",
    ):
        found = values(read(name, f"{script}{words}\n"))
        assert (found["training.framework"], found["parallelism.zero_stage"]) == ("deepspeed", 2)
    alone = read(name, f"{script}--deepspeed\n")
    assert any("makes the engine's config" in each.message for each in alone.problems)
    assert not read(name, f"{script}--deepspeed\n", parallelism__zero_stage=3).problems


def test_retrieval_is_no_language_model_training() -> None:
    """FlagEmbedding's scripts have TrainingArguments, and rows of a question and its passages."""
    script = (
        "torchrun --nproc_per_node 2 -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path gpt2 "
    )
    script += "--train_group_size 8 --query_max_len 512 --per_device_train_batch_size 2 --learning_rate 1e-5 --fp16\n"
    assert any("retrieval" in each.message for each in read("s.sh", script).problems)
