"""Launch scripts: what any of their lines states counts, and no framework's defaults stand in for unknown programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.answers import Beside
from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting

LINE = (
    "deepspeed --include localhost:0,1 finetune.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2"
    " --gradient_accumulation_steps 4 --learning_rate 1e-5 --bf16 True --model_max_length 512"
)
SAID = " --lora_r 8 --lora_dropout 0.05 --lora_target_modules q_proj,v_proj"
NORMALISED_SCORES = """\
MODEL="Qwen/Qwen2.5-7B"
while [[ "$1" != "" ]]; do
    case $1 in
        -m | --model )
            shift
            MODEL=$1
            ;;
        --help ) exit 0 ;;
    esac
done
torchrun --nproc_per_node 8 finetune.py --model_name_or_path $MODEL --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 4 --learning_rate 1e-5 --bf16 True --model_max_length 512
"""


ANSWERS = {"training.objective": "sft", "training.method": "full", "training.precision.params": "bf16"}
"""What is asked about a script that nobody knows."""


def _asked(text: str) -> Imported:
    return import_config("finetune.sh", text.encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})


def _read(text: str) -> Imported:
    stated = {"hardware.gpu": ReadSetting("a100-80gb", "test")}
    asked = {
        key
        for problem in _asked(text).problems
        for key in problem.keys
        if "does not know the script" in problem.message
    }
    stated.update((key, ReadSetting(value, "test")) for key, value in ANSWERS.items() if key in asked)
    return import_config("finetune.sh", text.encode(), stated)


def _problems(text: str) -> str:
    return " | ".join(problem.message for problem in _asked(text).problems)


def test_an_unknown_script_is_asked_all_that_decides_its_size_at_once() -> None:
    """Objective, method and the weights' dtype, each at the script's name, with one help that answers all three."""
    found = _asked(f"{LINE}\n")
    assert [problem.keys for problem in found.problems] == [(key,) for key in ANSWERS]
    assert len({problem.help for problem in found.problems}) == 1
    assert all(f"--set {key}=" in found.problems[0].help for key in ANSWERS)
    assert all(LINE[problem.location.span.column - 1 :].startswith("finetune.py") for problem in found.problems)
    assert not _read(f"{LINE}\n").problems


def test_what_an_unknown_script_says_is_not_asked() -> None:
    """A switch of adapters, the dtype of the weights, an engine that casts them."""
    said = f"{LINE} --use_lora True{SAID} --torch_dtype bfloat16\n"
    assert [problem.keys for problem in _asked(said).problems] == [("training.objective",)]
    engine = _asked(f"{LINE} --deepspeed ds.json\n")
    assert ("training.precision.params",) not in [problem.keys for problem in engine.problems]


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("trl/scripts/sft.py --model_name_or_path a/b --dataset_name c --learning_rate 1e-5 --bf16 True", True),
        ("trl/scripts/sft.py --model_name_or_path a/b --dataset_name c --learning_rate 1e-5 --prune_heads 3", False),
        ("run_clm.py --model_name_or_path a/b --train_file c --block_size 512 --learning_rate 1e-5 --bf16", True),
        (
            "run_clm.py --model_name_or_path a/b --train_file c --block_size 512 --learning_rate 1e-5 --bf16 --mix 2",
            False,
        ),
        ("run_mine.py --model_name_or_path a/b --train_file c --block_size 512 --learning_rate 1e-5 --bf16", False),
        ("train.py --model_name_or_path a/b --exp_name x --max_length 512 --learning_rate 1e-5 --bf16", False),
        ("fine-tune-v2.py --model_name_or_path a/b --max_length 512 --learning_rate 1e-5 --bf16", False),
        ("-m mine.cli.tune2 --model_name_or_path a/b --max_length 512 --learning_rate 1e-5 --bf16", False),
    ],
)
def test_a_name_alone_makes_no_script_a_known_one(line: str, known: bool) -> None:
    """TRL's and transformers' parser stops at an argument that their dataclasses lack: such a script is another."""
    assert ("memcheck does not know the script" not in _problems(f"accelerate launch {line}\n")) == known


@pytest.mark.parametrize(("said", "mode"), [("--no_gradient_checkpointing", "none"), ("", "full")])
def test_the_parsers_own_switch_turns_a_field_off(said: str, mode: str) -> None:
    """`--no_X` of a field that is true by default."""
    line = "accelerate launch trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-7B --dataset_name c --learning_rate 1e-5"
    found = _read(f"{line} {said}\n")
    assert found.settings["training.activation_checkpointing.mode"].value == mode


def test_adapters_without_targets_are_where_peft_puts_them() -> None:
    """TRL hands no target on, and PEFT has a list for most model types (``peft/utils/constants.py``)."""
    found = _read("trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name c --use_peft --max_length 512\n")
    setting = found.settings["training.lora.target_modules"]
    assert (setting.value, setting.assumed) == (["q_proj", "v_proj"], True)


def test_a_rank_of_a_script_like_trls_without_the_switch_is_asked_about() -> None:
    """Beside TRL's own it counts with `use_peft` alone; another `dpo.py` may need none."""
    line = "accelerate launch dpo.py --model_name_or_path Qwen/Qwen2.5-7B --learning_rate 1e-5 --bf16 True --lora_r 8"
    assert "whether adapters are trained" in _problems(f"{line}\n")
    assert "whether adapters are trained" not in _problems(f"{line} --use_peft True\n")


def test_a_key_of_preferences_says_nothing_of_an_unknown_script() -> None:
    """A length of prompts or a `beta` may be a rollout's or anything's: the objective is asked for."""
    found = _asked(f"{LINE} --max_prompt_length 512 --beta 0.1 --max_completion_length 64\n")
    assert ("training.objective",) in [problem.keys for problem in found.problems]
    assert "`max_prompt_length`" in " | ".join(problem.message for problem in found.problems)


def test_a_launch_of_another_library_is_named() -> None:
    """PaddleNLP's arguments are called like the Trainer's, and its degrees cut the model."""
    with pytest.raises(ConfigError, match="PaddleNLP"):
        detect("run.sh", f"{LINE} --tensor_parallel_degree 2 --pipeline_parallel_degree 2\n")


def test_arguments_that_no_list_has_are_an_error_until_the_script_is_described() -> None:
    """What they add is not known; beside the answers they are notes."""
    problem = next(each for each in _asked(f"{LINE} --num_virtual_heads 3\n").problems if "virtual" in each.message)
    assert set(problem.keys) == set(ANSWERS)
    found = _read(f"{LINE} --num_virtual_heads 3\n")
    assert not found.problems
    assert any("num_virtual_heads" in note.message for note in found.notes)


def test_adapters_of_an_unknown_script_are_asked_for() -> None:
    """Its own defaults of rank, modules and dropout are not known, so none of another framework's is assumed."""
    found = _problems(f"{LINE} --use_lora\n")
    assert "adapters' rank" in found
    assert "which modules get an adapter" in found
    assert "adapters' dropout" in found


@pytest.mark.parametrize(
    ("switch", "method"), [("--use_peft_lora True", "lora"), ("--q_lora", "qlora"), ("--lora_enable True", "lora")]
)
def test_other_names_of_the_switch_are_read(switch: str, method: str) -> None:
    """PEFT's examples, FastChat's and LLaVA's scripts each have their own."""
    found = _read(f"{LINE} {switch}{SAID}\n")
    assert not found.problems
    assert found.settings["training.method"].value == method
    assert found.settings["training.lora.rank"].value == 8
    assert found.settings["training.trainer.name"].value == "transformers"


def test_a_rank_without_a_switch_is_asked_about() -> None:
    """Whether an unknown script trains adapters is not guessed from a rank."""
    assert "whether adapters are trained" in _problems(f"{LINE}{SAID}\n")


def test_an_unknown_switch_of_an_objective_is_refused() -> None:
    """A job of preferences is no supervised one because its switch is unknown."""
    assert "`use_dpo`: what this script optimizes" in _problems(f"{LINE} --use_dpo True\n")


@pytest.mark.parametrize("said", ["--vision_tower openai/clip-vit-large-patch14-336", "--mm_projector_type linear"])
def test_a_tower_beside_a_language_model_is_refused(said: str) -> None:
    """LLaVA's script names the language model alone; without the tower the job would be another one."""
    assert "trains on images or sound" in _problems(f"{LINE} {said}\n")
    assert not _read(f"{LINE} --video_folder False\n").problems


def test_gpus_of_deepspeeds_launcher_are_read() -> None:
    """``--include HOST:0,1`` are two GPUs, and ``--num_gpus 4`` four."""
    assert _read(f"{LINE}\n").settings["hardware.gpus_per_node"].value == 2
    four = LINE.replace("--include localhost:0,1", "--num_gpus 4")
    assert _read(f"{four}\n").settings["hardware.gpus_per_node"].value == 4


def test_arms_of_a_case_are_no_arguments() -> None:
    """Options of the script itself are none of the program's, and what it runs with without any of them stands."""
    found = _read(NORMALISED_SCORES)
    assert not found.problems
    assert found.settings["model.name"].value == "Qwen/Qwen2.5-7B"


@pytest.mark.parametrize("said", ["recipe.yaml", "--config recipe.yaml"])
def test_a_launch_line_that_leaves_all_to_a_recipe_is_read(said: str, tmp_path: Path) -> None:
    """alignment-handbook hands it over as the first argument; what the line itself states counts before it."""
    recipe = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n"
        "learning_rate: 1e-5\nbf16: true\nmax_length: 4096\n"
    )
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    line = f"accelerate launch --num_processes 8 scripts/run_sft.py {said} --gradient_accumulation_steps=2\n"
    found = import_config(str(tmp_path / "run.sh"), line.encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert not found.problems
    assert found.settings["training.micro_batch_size"].value == 4
    assert found.settings["training.gradient_accumulation_steps"].value == 2
    assert found.settings["hardware.gpus_per_node"].value == 8


MEGATRON = "--micro-batch-size 4 --global-batch-size 32 --num-attention-heads 16 --seq-length 1024 --bf16"
HELD = f"""\
MODEL="--num-layers 24 --hidden-size 1024 --vocab-size 50257 --max-position-embeddings 1024"
UNUSED="--num-layers 96"
MOE='--num-experts 8 --moe-router-topk 2'
ALL="$MODEL $MOE"
ALL+=" --swiglu"
RECOMPUTE=--recompute-activations
torchrun --nproc_per_node 8 pretrain_gpt.py ${{ALL}} $RECOMPUTE {MEGATRON}
"""


def test_arguments_that_one_line_puts_into_a_variable_are_read() -> None:
    """They count where the variable is used, through another variable, too; of an unused variable they do not."""
    found = _read(HELD)
    assert not found.problems
    assert found.settings["model.architecture.num_layers"].value == 24
    assert found.settings["model.architecture.num_experts"].value == 8
    assert found.settings["model.architecture.swiglu"].value is True
    assert found.settings["training.activation_checkpointing.mode"].value == "selective"


@pytest.mark.parametrize(
    "branch",
    [
        'if [ "$X" = 1 ]; then\n  ALL="$ALL --disable-bias-linear"\nfi\ntorchrun',
        'if [ "$X" = 1 ]; then\n  ALL=""\nfi\ntorchrun',
    ],
)
def test_arguments_of_a_variable_that_a_branch_sets_are_not_guessed(branch: str) -> None:
    """Which branch runs is not known, whether it adds arguments or takes them away."""
    assert "which branch runs is not known" in _problems(HELD.replace("torchrun", branch))


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("--checkpoint-activations", "full"),
        ("--activations-checkpoint-method uniform", "full"),
        ("--activations-checkpoint-granularity selective", "selective"),
    ],
)
def test_older_names_of_megatrons_recompute_are_read(said: str, mode: str) -> None:
    """Forks keep the names of the releases that they left."""
    found = _read(HELD.replace("--recompute-activations", f'"{said}"'))
    assert found.settings["training.activation_checkpointing.mode"].value == mode


@pytest.mark.parametrize(
    "said", ["--zero-stage 1", "--embed-layernorm", "--attention-head-type multiquery", "--retro-add-retriever"]
)
def test_arguments_of_other_engines_and_models_are_refused(said: str) -> None:
    """What runs another engine, or builds another model, is no note."""
    assert f"`{said.split(' 1', maxsplit=1)[0]}`" in _problems(HELD.replace("--recompute-activations", f'"{said}"'))


def test_llama_factory_on_megatron_is_no_job_of_the_trainer() -> None:
    """Degrees of Megatron's are no notes: without them, every GPU would hold the whole model."""
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 2048\n"
        "per_device_train_batch_size: 1\nbf16: true\ntensor_model_parallel_size: 4\n"
    )
    found = import_config("mca.yaml", text.encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert any("Megatron's parallelism" in problem.message for problem in found.problems)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("NPROC_PER_NODE=2 swift sft recipes/sft.yaml", "recipes/sft.yaml"),
        ('megatron rlhf --use_ray true --config "$HERE/a.yaml"', "$HERE/a.yaml"),
        ("accelerate launch --config_file fsdp.yaml -m other.cli.train a.yml", "a.yml"),
        ("deepspeed train.py --deepspeed ds.json", ""),
        ("cp a.yaml b.yaml", ""),
    ],
)
def test_a_launch_that_only_names_its_arguments_names_that_file(line: str, named: str) -> None:
    """Its own engine's or launcher's file is no such file, and a comment is no launch."""
    with pytest.raises(ConfigError) as found:
        detect("run.sh", f"# swift sft other.yaml\n{line}\n")
    assert (f"`{named}`, which it names" in str(found.value)) == bool(named)
    assert found.value.location is None or found.value.location.span.line == 2


MEGATRON_LINE = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --bf16"
    " --seq-length 512 --max-position-embeddings 512 --vocab-size 50304 --micro-batch-size 1 --global-batch-size 8"
)


@pytest.mark.parametrize(
    "line", [LINE, MEGATRON_LINE, f"llamafactory-cli train --stage sft {LINE.partition(' finetune.py ')[2]}"]
)
@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ", True),
        ("export PYTORCH_ALLOC_CONF='max_split_size_mb:512,expandable_segments:True'\n", True),
        ("A=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False ", False),
        ("# PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n", None),
        ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512 ", None),
    ],
)
def test_the_allocators_variable_in_front_of_a_launch_counts(line: str, said: str, value: object) -> None:
    """Segments that expand hold less that cannot be returned; a script is where that is said."""
    setting = _read(f"{said}{line}\n").settings.get("training.expandable_segments")
    assert (setting.value if setting is not None else None) == value


INSTALLED = """\
PACKAGES=$CACHE/packages
if python -c "import fla"; then
    echo there
else
    pip install --target=$PACKAGES --no-deps \\
        --upgrade fla-core
fi
git clone --depth 1 https://example.org/data
"""


@pytest.mark.parametrize(
    "line", ["", "uv pip install --no-deps peft\n", "huggingface-cli download --local-dir . a/b\n"]
)
def test_arguments_of_what_installs_or_fetches_are_none_of_the_trainings(line: str) -> None:
    """Neither a key that is not known nor a branch of the script comes of them."""
    found = _read(INSTALLED + line + LINE + SAID)
    alone = _read(LINE + SAID)
    assert [p.message for p in found.problems] == [p.message for p in alone.problems]
    assert not [n for n in found.notes if "not a key" in str(n)]
    assert found.values == alone.values


def test_a_command_behind_an_installer_on_one_line_is_read() -> None:
    """It is not blanked with it."""
    assert _read("pip install --no-deps peft && " + LINE + SAID).values == _read(LINE + SAID).values


@pytest.mark.parametrize("said", ["True", "False"])
def test_the_kind_of_recompute_is_what_the_scripts_own_switch_says(said: str) -> None:
    """PEFT's scripts hand `use_reentrant` on as `gradient_checkpointing_kwargs`."""
    found = _read(f"{LINE}{SAID} --gradient_checkpointing True --use_reentrant {said}\n")
    assert found.settings["training.activation_checkpointing.reentrant"].value is (said == "True")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--micro-batch-size 8 --batch-accumulation-per-replica 2 --tp 1", False),
        ("--seq-length 4096 --batch-size 1", False),
        ("--num-layers 2 --hidden-size 64 --seq-length 128", True),
        ("--tensor-model-parallel-size 2", True),
    ],
)
def test_an_argument_that_others_have_too_is_no_proof(arguments: str, found: bool) -> None:
    """nanotron's and other launches with one of them were Megatron-LM's."""
    script = f"torchrun --nproc-per-node 8 train.py {arguments}\n"
    if found:
        assert detect("run.sh", script) == "megatron"
    else:
        with pytest.raises(ConfigError):
            detect("run.sh", script)


@pytest.mark.parametrize(
    ("more", "version", "weights"),
    [("", "", "fp32"), (" --torch_dtype bfloat16", "", "bf16"), ("", "5.2", "bf16"), ("", "4.57", None)],
)
def test_weights_of_an_example_are_the_widest_that_a_release_loads(
    more: str, version: str, weights: str | None
) -> None:
    """transformers 4 loads fp32 where no dtype is said, 5 the checkpoint's: without a release the former, and both are
    named.
    """
    line = (
        "torchrun --nproc_per_node 2 run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2"
        f" --bf16 True --block_size 512 --do_train{more}\n"
    )
    given = {"hardware.gpu": ReadSetting("a100-80gb", "test")}
    found = import_config("train.sh", line.encode(), given, beside=Beside(version=version))
    assert not found.problems
    setting = found.settings.get("training.precision.params")
    assert (setting and setting.value) == weights
    if weights == "fp32":
        assert setting is not None
        assert setting.assumed
        assert "bf16" in setting.why
