"""torchtune's recipes and commands: what decides a job, what refers to what, and what is no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.detect import detect
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

RECIPE = """\
# tune run full_finetune_single_device --config llama3_2/1B_full_single_device
output_dir: /tmp/run
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: t.model, max_seq_len: 2048}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, output_dir: '${output_dir}'}
batch_size: 2
optimizer: {_component_: torch.optim.AdamW, fused: true, lr: 2e-5}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
enable_activation_checkpointing: true
compile: false
dtype: bf16
"""


def read(text: str, gpus: int | None = 1, name: str = "recipe.yaml", **stated: object) -> Imported:
    """The import of one text on so many GPUs; ``stated`` with ``__`` for the dot."""
    values: dict[str, object] = {"hardware.gpu": "h100-80gb"}
    values |= {} if gpus is None else {"hardware.gpus_per_node": gpus}
    values |= {key.replace("__", "."): value for key, value in stated.items()}
    return import_config(name, text.encode(), {key: ReadSetting(each, "test") for key, each in values.items()})


def said(imported: Imported) -> dict[str, object]:
    """The plan's keys and values, which it has only without a problem."""
    assert imported.problems == ()
    return {key: setting.value for key, setting in imported.settings.items()}


def test_how_many_gpus_there_are_decides_whether_a_job_is_sharded() -> None:
    """A recipe for one GPU does not run on several: with more, it is its distributed counterpart, and that is said."""
    alone, several = read(RECIPE, 1), read(RECIPE, 8)
    assert detect("recipe.yaml", RECIPE) == alone.format == "torchtune"
    assert (said(alone)["parallelism.zero_stage"], said(several)["parallelism.zero_stage"]) == (0, 3)
    assert alone.notes == ()
    (note,) = several.notes
    assert (note.location.span.line, "full_finetune_single_device" in note.message) == (1, True)


def test_several_data_sets_are_packed_together() -> None:
    """A list of them is packed where its members are."""
    one = "{_component_: torchtune.datasets.alpaca_dataset, packed: true}"
    found = said(read(RECIPE.replace(one, f"[{one}, {one}]")))
    assert (found["training.sequences"], found["training.attention"]) == ("packed", "flex")
    loose = one.replace("true", "false")
    assert said(read(RECIPE.replace(one, f"[{loose}, {loose}]")))["training.attention"] == "sdpa"


def test_an_argument_of_the_optimizer_that_is_not_known_is_a_note() -> None:
    """bitsandbytes' optimizers keep other states with other bits."""
    name = "bitsandbytes.optim.PagedAdamW, optim_bits: 8"
    (note,) = read(RECIPE.replace("torch.optim.AdamW, fused: true", name)).notes
    assert "optim_bits" in note.message


def test_a_length_that_is_not_stated_is_asked_for() -> None:
    """Rows are then as long as the longest of the data, which no file of the job says."""
    text = RECIPE.replace("max_seq_len: 2048", "max_seq_len: null").replace("packed: true", "packed: false")
    (problem,) = read(text).problems
    assert (problem.location.span.line, problem.keys) == (3, ("training.sequence_length",))
    found = read(text, training__sequence_length=1024)
    assert said(found)["training.attention"] == "sdpa"
    assert (
        "longest" in found.settings["training.sequences"].why or "full ones" in found.settings["training.sequences"].why
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size: 2", "batch_size: ${sizes.batch}", "${sizes.batch}"),
        ("batch_size: 2", "batch_size: ${batch_size}", "batch_size"),
        ("dtype: bf16", "dtype: ${oc.env:DTYPE}", "oc.env"),
        ("path: t.model, max_seq_len: 2048", "path: t.model, max_seq_len: '${oc.env:LENGTH}'", "oc.env:LENGTH"),
    ],
)
def test_a_reference_that_nothing_answers_is_an_error_at_its_line(old: str, new: str, message: str) -> None:
    """A missing key, a circle, a resolver that asks the environment."""
    found = read(RECIPE.replace(old, new))
    line = next(number for number, text in enumerate(RECIPE.splitlines(), 1) if old in text)
    assert any(each.location.span.line == line and message in each.message for each in found.problems)


def test_references_are_followed_inside_the_file() -> None:
    """By their path, beside the key, and through another reference; what moves no memory may refer to anything."""
    text = RECIPE.replace("batch_size: 2", "batch_size: ${sizes.first}\nsizes: {first: '${.second}', second: 4}")
    found = read(text.replace("output_dir: /tmp/run", "output_dir: ${oc.env:HOME}"))
    assert said(found)["training.micro_batch_size"] == 4


def test_a_builder_of_any_size_is_its_dimensions() -> None:
    """Llama 2's builder leaves the feed-forward width to a formula."""
    sizes = "vocab_size: 32000, num_layers: 22, num_heads: 32, num_kv_heads: 4, embed_dim: 2048"
    text = RECIPE.replace("llama3_2.llama3_2_1b", f"llama2.llama2, {sizes}")
    found = said(read(text))
    assert found["model.architecture.hidden_size"] == 2048
    assert found["model.architecture.intermediate_size"] == 5632


def test_an_unknown_builder_is_an_error_that_the_model_settles() -> None:
    """A component of somebody's own builds a model that only they know."""
    text = RECIPE.replace("torchtune.models.llama3_2.llama3_2_1b", "my.models.big")
    (problem,) = read(text).problems
    assert "my.models.big" in problem.message
    assert said(read(text, model="llama-3.2-1b"))["model"] == "llama-3.2-1b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RECIPE.replace("optimizer:", "quantizer:"), "trains nothing"),
        (RECIPE + "ac_mode: selective\n", "turns recompute off"),
        (RECIPE.replace("fused: true", "fused: true, momentum: 0.9").replace("AdamW", "SGD"), ""),
        (RECIPE + "optimizer_in_bwd: true\nfsdp_cpu_offload: true\n", "nothing is sharded on one GPU"),
    ],
)
def test_what_a_switch_undoes_is_said(text: str, message: str) -> None:
    """Switches that exclude each other, or need more than one GPU, are notes or refusals; never silence."""
    found = read(text)
    heard = [each.message for each in (*found.problems, *found.notes)]
    assert any(message in each for each in heard) if message else heard == []


def test_quantization_aware_training_is_read_by_its_quantizer() -> None:
    """torchao's quantizer of inputs in 8 bits and weights in 4; another one is refused."""
    quantizer = "quantizer: {_component_: torchtune.training.quantization.KIND, groupsize: 128}\n"
    found = said(read(RECIPE + quantizer.replace("KIND", "Int8DynActInt4WeightQATQuantizer")))
    assert found["training.options.quantizer"] == "Int8DynActInt4WeightQATQuantizer"
    assert found["training.options.groupsize"] == 128
    (problem,) = read(RECIPE + quantizer.replace("KIND", "Int4WeightOnlyQATQuantizer")).problems
    assert "quantization-aware training that has no memory model" in problem.message


def test_adapters_of_the_output_projection_are_those_of_the_head() -> None:
    """`apply_lora_to_output` adds the head to the adapted modules."""
    model = "{_component_: torchtune.models.mistral.lora_mistral_7b, lora_attn_modules: [q_proj], MORE}"
    text = RECIPE.replace("{_component_: torchtune.models.llama3_2.llama3_2_1b}", model)
    for value, targets in (("true", ["q_proj", "lm_head"]), ("false", ["q_proj"])):
        found = said(read(text.replace("MORE", f"apply_lora_to_output: {value}")))
        assert found["training.lora.target_modules"] == targets


def test_a_command_is_read_with_its_file_its_overrides_and_its_launcher(tmp_path: Path) -> None:
    """Overrides name a component by its section, remove keys with a tilde, and win over the file."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    script = (
        "tune run --nnodes 2 --nproc_per_node 4 full_finetune_distributed --config recipe.yaml batch_size=8 \\\n"
        "  model=torchtune.models.qwen3.qwen3_8b_base tokenizer.max_seq_len=4096 ~compile dataset.packed=False\n"
    )
    script = script.replace("\\\n  ", "")
    found = said(read(script, None, str(tmp_path / "run.sh")))
    assert (found["hardware.gpus_per_node"], found["hardware.nodes"], found["parallelism.zero_stage"]) == (4, 2, 3)
    assert (found["model.name"], found["training.micro_batch_size"]) == ("qwen3-8b", 8)
    assert found["training.sequence_length"] == 4096
    assert "training.compile" not in found


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tune run full_finetune_distributed --config llama3_1/9B_full", "no config `llama3_1/9B_full` of torchtune's"),
        ("tune run ppo_full_finetune_single_device --config mistral/7B_full_ppo_low_memory", "PPO"),
        ("tune run full_finetune_distributed --config gone.yaml", "there is no `gone.yaml`"),
        ("tune run --nproc_per_node 2 full_finetune_single_device --config recipe.yaml", "runs on one GPU"),
        ("tune run full_finetune_single_device --config recipe.yaml compile", "no override"),
    ],
)
def test_commands_that_cannot_be_read_say_why(tmp_path: Path, command: str, message: str) -> None:
    """A shipped config is not at hand, a file may be gone, and a recipe for one GPU has one."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    found = read(f"{command}\n", None, str(tmp_path / "run.sh"))
    assert any(message in each.message for each in found.problems)


def test_a_config_that_torchtune_ships_is_known_by_its_name(tmp_path: Path) -> None:
    """With the overrides of the command, and without a key that most others have."""
    start = "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3/8B_lora"
    found = said(read(f"{start} batch_size=4 tokenizer.max_seq_len=2048\n", None, str(tmp_path / "run.sh")))
    assert (found["model.name"], found["training.method"], found["training.lora.rank"]) == ("llama-3-8b", "lora", 8)
    assert (found["training.micro_batch_size"], found["training.gradient_accumulation_steps"]) == (4, 8)
    assert found["training.activation_checkpointing.mode"] == "none"
    full = said(
        read(
            "tune run full_finetune_distributed --config qwen3/8B_full tokenizer.max_seq_len=4096\n",
            8,
            str(tmp_path / "run.sh"),
        )
    )
    assert (full["model.name"], full["training.method"], full["training.micro_batch_size"]) == ("qwen3-8b", "full", 2)


def test_references_that_multiply_are_left_alone() -> None:
    """A value that doubles with each of sixty references is an error, and costs no time."""
    chain = "".join(f"k{n}: '${{k{n + 1}}}${{k{n + 1}}}'\n" for n in range(60)) + "k60: ab\n"
    found = read(RECIPE.replace("batch_size: 2", "batch_size: ${k0}") + chain)
    assert any("k1" in each.message or "k0" in each.message for each in found.problems)


def test_a_plan_that_says_nothing_of_its_gpus_has_one(tmp_path: Path) -> None:
    """Beside `source:` nothing is sharded then, as one GPU is a plan's default."""
    from memcheck.configs.sourced import with_source
    from memcheck.plan.read import load_documents

    (tmp_path / "recipe.yaml").write_text(RECIPE)
    plan = "memcheck: 1\nsource: {torchtune: ./recipe.yaml}\nhardware: {gpu: h100-80gb}\n"
    (document,) = load_documents(str(tmp_path / "plan.yaml"), plan.encode())
    values = with_source(document, {}).values
    assert isinstance(values, dict)
    assert values["parallelism"]["zero_stage"] == 0


def test_preferences_are_pairs_beside_the_reference_of_their_recipe() -> None:
    """Full training holds a second model, adapters are turned off; the loss is of whole logits."""
    full = RECIPE.replace("torchtune.modules.loss.LinearCrossEntropyLoss", "torchtune.rlhf.loss.DPOLoss")
    adapters = full.replace("llama3_2_1b}", "lora_llama3_2_1b, lora_attn_modules: [q_proj]}")
    for text, reference in ((full, "resident"), (adapters, "adapter-off")):
        found = said(read(text))
        assert (found["training.objective.name"], found["training.reference"]) == ("dpo", reference)
        assert "training.loss.kind" not in found


def test_a_divergence_names_its_teacher_and_as_many_chunks() -> None:
    """Teacher and beta are the plan's; another number of chunks is the error on which the recipe stops."""
    text = RECIPE.replace("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss") + (
        "teacher_model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
        "kd_loss: {_component_: torchtune.modules.loss.ReverseKLWithChunkedOutputLoss}\n"
        "kd_ratio: 0.5\n"
    )
    found = said(read(text))
    assert found["training.teacher.model.name"] == "llama-3.1-8b"
    assert (found["training.objective.name"], found["training.objective.beta"]) == ("distill", 1.0)
    (problem,) = read(text.replace("OutputLoss}\nkd_ratio", "OutputLoss, num_output_chunks: 4}\nkd_ratio")).problems
    assert problem.location.span.line == 14
    (unknown,) = read(text.replace("llama3_1.llama3_1_8b", "llama3_1.lora_llama3_1_8b")).problems
    assert unknown.location.span.line == 13
