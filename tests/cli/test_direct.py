"""Judging what is launched: a framework's own config, a command line, a model by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main

TRAIN = """\
base_model: meta-llama/Llama-3.1-8B
sequence_len: 2048
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
adapter: lora
lora_r: 16
lora_target_linear: true
bf16: auto
gradient_checkpointing: true
learning_rate: 2e-5
"""
COMMAND = (
    "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.2-1B --block_size 2048 "
    "--per_device_train_batch_size 2 --learning_rate 2e-5 --bf16 --gradient_checkpointing"
)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with one config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.yml").write_text(TRAIN)


def plans(capsys: Capture) -> list[dict[str, object]]:
    """The plans of a JSON report."""
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["plans"]
    return found


def test_a_config_is_judged_like_a_plan(capsys: Capture) -> None:
    """`check train.yml --gpu --gpus-per-node` gives a verdict, and findings point into the config."""
    arguments = ["check", "configs/train.yml", "--gpu", "rtx-4090", "--gpus-per-node", "2", "--format", "json"]
    code = main(arguments)
    (plan,) = plans(capsys)
    assert (plan["path"], plan["name"]) == ("configs/train.yml", "train")
    assert plan["estimate"] is not None
    assert code == (0 if plan["status"] == "passed" else 1)


def test_a_config_and_its_import_give_the_same_estimate(capsys: Capture) -> None:
    """What is judged directly is what `import` writes."""
    where = ["--gpu", "h100-80gb", "--gpus-per-node", "8"]
    assert main(["import", "configs/train.yml", *where, "-o", "plan.yaml"]) == 0
    capsys.readouterr()
    found = []
    for path in (["plan.yaml"], ["configs/train.yml", *where]):
        assert main(["estimate", *path, "--format", "json"]) == 0
        found.append(plans(capsys)[0]["estimate"])
    keys = ("allocated_bytes", "device_bytes", "host_bytes_per_node", "components_bytes")
    imported, judged = ([each[key] for key in keys] for each in found)  # type: ignore[index]
    assert imported == judged


def test_what_nobody_said_is_asked_for(capsys: Capture) -> None:
    """Without a GPU there is no verdict, and the flag that names one is in the help."""
    assert main(["check", "configs/train.yml"]) == 1
    out = capsys.readouterr().out
    assert "does not say which GPU" in out
    assert "--gpu" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("name", "text"),
    [("some.toml", '[project]\nname = "x"\n'), ("some.json", '{"hello": 1}\n'), ("run.sh", "#!/bin/sh\nls\n")],
)
def test_a_file_that_is_no_config_is_one_error(tmp_path: Path, capsys: Capture, name: str, text: str) -> None:
    """TOML, JSON and scripts of any other kind get one finding, and none about YAML or plans."""
    (tmp_path / name).write_text(text)
    assert main(["check", name, "--gpu", "h100-80gb", "--format", "json"]) == 1
    (plan,) = plans(capsys)
    assert [each["code"] for each in plan["diagnostics"]] == ["MEM503"]  # type: ignore[union-attr,index,attr-defined]


def test_a_folder_is_gated_with_five_lines(tmp_path: Path, capsys: Capture) -> None:
    """A mapping of paths to hardware judges every config that it means, and no other file."""
    (tmp_path / "configs" / "other.yml").write_text(TRAIN.replace("2048", "1024"))
    (tmp_path / "configs" / "notes.yml").write_text("apples: 3\n")
    (tmp_path / "elsewhere.yml").write_text(TRAIN)
    (tmp_path / "memcheck.toml").write_text(
        '[[configs]]\npath = "configs/[!n]*.yml"\ngpu = "a100-80gb"\ngpus-per-node = 8\nnodes = 1\n'
    )
    assert main(["check", "--format", "json"]) == 0
    assert [each["path"] for each in plans(capsys)] == ["configs/other.yml", "configs/train.yml"]


def test_a_number_is_shown_and_not_its_key(tmp_path: Path, capsys: Capture) -> None:
    """Where a config's line is underlined by its key, the message has the value."""
    (tmp_path / "run.yaml").write_text(
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\nstep_scheduler: {local_batch_size: 1}\n"
        "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.runs_transformers, "
        "pretrained_model_name_or_path: meta-llama/Llama-3.2-1B}\ndistributed: {strategy: fsdp2, tp_size: -4}\n"
    )
    assert main(["check", "run.yaml", "--gpu", "h100-80gb", "--gpus-per-node", "8", "--sequence-length", "1024"]) == 1
    assert "not the number `-4`" in " ".join(capsys.readouterr().out.split())


def allocated(arguments: list[str], capsys: Capture) -> list[int]:
    """The peak of each config that is checked."""
    main(["check", *arguments, "--format", "json"])
    return [each["estimate"]["allocated_bytes"] for each in plans(capsys)]  # type: ignore[index]


def test_a_length_is_stated_beside_configs_that_do_not_say(tmp_path: Path, capsys: Capture) -> None:
    """On the command line or in the mapping. One that a config has is a limit, below which what is stated counts."""
    recipe = "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\ntokenizer: {max_seq_len: LENGTH}\n"
    recipe += "optimizer: {_component_: torch.optim.AdamW}\nbatch_size: 1\ndtype: bf16\n"
    recipe += "loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}\n"
    (tmp_path / "recipe.yaml").write_text(recipe.replace("LENGTH", "null"))
    (tmp_path / "long.yaml").write_text(recipe.replace("LENGTH", "8192"))
    where = ["--gpu", "h100-80gb", "--gpus-per-node", "1"]
    assert main(["check", "recipe.yaml", *where]) == 1
    assert "--sequence-length 4096" in capsys.readouterr().out
    short, long = (allocated(["recipe.yaml", *where, "--sequence-length", str(n)], capsys) for n in (1024, 8192))
    assert short < long == allocated(["long.yaml", *where], capsys)
    assert allocated(["long.yaml", *where, "--sequence-length", "1024"], capsys) == short
    assert main(["check", "long.yaml", *where, "--sequence-length", "9000"]) == 1
    assert "MEM501" in capsys.readouterr().out
    (tmp_path / "packed.yaml").write_text(recipe.replace("LENGTH", "8192") + "dataset: {packed: true}\n")
    assert main(["check", "packed.yaml", *where, "--sequence-length", "1024"]) == 1
    assert "--set training.sequence_length=1024" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "memcheck.toml").write_text(
        '[[configs]]\npath = "*.yaml"\ngpu = "h100-80gb"\ngpus-per-node = 1\nsequence-length = 1024\n'
    )
    assert allocated(["recipe.yaml"], capsys) == short
    assert allocated(["long.yaml"], capsys) == long
    assert main(["estimate", "recipe.yaml", *where, "--sequence-length", "8192", "--format", "json"]) == 0
    assert [plans(capsys)[0]["estimate"]["allocated_bytes"]] == long  # type: ignore[index]


@pytest.mark.slow
def test_pictures_are_stated_beside_configs_that_train_on_them(tmp_path: Path, capsys: Capture) -> None:
    """On the command line or in the mapping; the config's own limit counts, and jobs of text alone have none."""
    job = "base_model: Qwen/Qwen2.5-VL-7B-Instruct\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    job += "datasets: [{path: a}]\nmicro_batch_size: 1\nsequence_len: 8192\n"
    (tmp_path / "text.yaml").write_text(job)
    (tmp_path / "seen.yaml").write_text(f"{job}processor_type: AutoProcessor\n")
    (tmp_path / "small.yaml").write_text(f"{job}processor_type: AutoProcessor\nimage_size: 280\n")
    where = ["--gpu", "h100-80gb", "--gpus-per-node", "1"]
    large, small = "per_sample: 2, width: 1280, height: 720", "per_sample: 2, width: 280, height: 280"
    filled, two, two_small = (
        allocated(["seen.yaml", *where, *images], capsys) for images in ([], ["--images", large], ["--images", small])
    )
    assert two_small < two < filled
    assert allocated(["small.yaml", *where, "--images", large], capsys) == two_small
    text = allocated(["text.yaml", *where], capsys)
    (tmp_path / "memcheck.toml").write_text(
        '[[configs]]\npath = "*.yaml"\ngpu = "h100-80gb"\ngpus-per-node = 1\n'
        "images = {per_sample = 2, width = 1280, height = 720}\n"
    )
    assert allocated(["seen.yaml"], capsys) == two
    assert allocated(["text.yaml"], capsys) == text < two_small


def test_the_release_is_stated_beside_configs_whose_defaults_it_moves(tmp_path: Path, capsys: Capture) -> None:
    """On the command line or in the mapping: FSDP is the first one before transformers 5.10, whatever TRL's release."""
    job = "model_name_or_path: meta-llama/Llama-3.2-1B\ndataset_name: a\nmax_length: 1024\npacking: true\nbf16: true\n"
    job += "per_device_train_batch_size: 1\ngradient_checkpointing: true\nfsdp: full_shard auto_wrap\n"
    (tmp_path / "recipe.yaml").write_text(job)
    where = ["--gpu", "h100-80gb", "--gpus-per-node", "8"]
    newest, second, first, trl = (
        allocated(["recipe.yaml", *where, *release], capsys)
        for release in ([], *(["--framework-version", each] for each in ("5.10", "5.9", "0.29")))
    )
    assert newest == second == trl != first
    (tmp_path / "memcheck.toml").write_text(
        '[[configs]]\npath = "*.yaml"\ngpu = "h100-80gb"\ngpus-per-node = 8\nframework-version = "5.9"\n'
    )
    assert allocated(["recipe.yaml"], capsys) == first
    assert main(["estimate", "recipe.yaml", *where, "--framework-version", "5.9", "--format", "json"]) == 0
    assert [plans(capsys)[0]["estimate"]["allocated_bytes"]] == first  # type: ignore[index]
    for release, key in (("5.9", "framework_version: '5.9'"), ("0.29", "version: '0.29'")):
        assert main(["import", "recipe.yaml", *where, "--framework-version", release]) == 0
        assert f" {key} " in capsys.readouterr().out.replace('"', "'")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('path = "a"\nimages = {per_sample = 2, breadth = 3}\n', "is not what training.images of a plan takes"),
        ('path = "a"\ngpus = 8\n', "unknown key 'gpus'"),
        ("gpu = 'a100-80gb'\n", "is not a pattern of paths"),
        ('path = "a"\nnodes = 0\n', "nodes is 0"),
        ('path = "a"\nframework-version = 4.57\n', "framework-version is 4.57, not a release in quotes"),
    ],
)
def test_a_wrong_mapping_is_an_error(tmp_path: Path, capsys: Capture, entry: str, message: str) -> None:
    """An entry with a key that it does not have, or without a pattern, stops the run."""
    (tmp_path / "memcheck.toml").write_text(f"[[configs]]\n{entry}")
    assert main(["check", "configs/train.yml"]) == 2
    assert message in capsys.readouterr().err


def test_drift_is_found_with_both_places(tmp_path: Path, capsys: Capture) -> None:
    """A plan that states another micro-batch than its config fails, and both lines are shown."""
    (tmp_path / "plan.yaml").write_text(
        "memcheck: 1\nsource: {axolotl: ./configs/train.yml}\nhardware: {gpu: h100-80gb, gpus_per_node: 8}\n"
        "training: {micro_batch_size: 2}\n"
    )
    assert main(["check", "plan.yaml", "--format", "json"]) == 1
    (found,) = [each for each in plans(capsys)[0]["diagnostics"] if each["code"] == "MEM501"]  # type: ignore[union-attr,index,attr-defined]
    assert found["location"]["line"] == 4
    assert "1 in the config" in found["message"]


def test_a_model_needs_no_file(capsys: Capture) -> None:
    """`estimate MODEL --gpu --gpus` prints the plan that it assumed, and the estimate of that plan."""
    arguments = ["llama-3.2-1b", "--gpu", "h100-80gb", "--gpus", "2", "--method", "lora", "--sequence-length", "1024"]
    assert main(["estimate", *arguments]) == 0
    out = capsys.readouterr().out
    assert "sequence_length: 1024" in out
    assert "method: lora" in out
    assert "device memory needed" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-3.2-1bb", "--gpu", "h100-80gb", "--gpus", "2"], "llama-3.2-1b"),
        (["llama-3.2-1b", "--gpus", "2"], "needs a GPU"),
        (["llama-3.2-1b", "--gpu", "h100-80gb", "--gpus", "12"], "do not fill nodes"),
        (["configs/train.yml", "--method", "lora"], "--method is for a model's name"),
    ],
)
def test_a_model_is_never_guessed(capsys: Capture, arguments: list[str], message: str) -> None:
    """An unknown name, no GPU, nodes that are not full, and options that a file would not heed are usage errors."""
    assert main(["estimate", *arguments]) == 2
    assert message in capsys.readouterr().err


LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "tie_word_embeddings": True, "max_position_embeddings": 131072,
}  # fmt: skip


def test_a_models_config_stands_for_its_name(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`estimate config.json` is `estimate MODEL`, from whatever folder; its plan names the file beside which it lies."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    elsewhere = tmp_path.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    known = ["--gpu", "h100-80gb", "--gpus", "2", "--method", "lora", "--format", "json"]
    assert main(["estimate", "llama-3.2-1b", *known]) == 0
    (named,) = plans(capsys)
    for here, path in (
        (tmp_path, "base/config.json"),
        (folder, "config.json"),
        (elsewhere, str(folder / "config.json")),
    ):
        monkeypatch.chdir(here)
        assert main(["estimate", path, *known]) == 0
        (found,) = plans(capsys)
        assert found["estimate"] == named["estimate"]
    monkeypatch.chdir(folder)
    assert main(["estimate", "config.json", *known[:-2]]) == 0
    assert "config: config.json" in capsys.readouterr().out


@pytest.mark.parametrize("config", [LLAMA, {"model_type": "qwen2_5_vl", "text_config": {"hidden_size": 64}}])
def test_a_models_config_is_no_job(capsys: Capture, config: dict[str, object]) -> None:
    """It says nothing of GPUs or training: estimate asks for a GPU, check says how it becomes a job."""
    Path("config.json").write_text(json.dumps(config))
    assert main(["estimate", "config.json"]) == 2
    assert "config.json is a model's config: a model needs a GPU" in capsys.readouterr().err
    assert main(["check", "config.json", "--gpu", "h100-80gb", "--gpus-per-node", "8"]) == 1
    assert "memcheck estimate FILE --gpu NAME --gpus N" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_is_not_known_is_refused_in_its_plan(capsys: Capture) -> None:
    """The config of a family without a forward pass: a located error in the plan that was assumed, and no estimate."""
    Path("config.json").write_text(json.dumps({**LLAMA, "model_type": "lama"}))
    assert main(["estimate", "config.json", "--gpu", "h100-80gb", "--gpus", "2"]) == 1
    out = capsys.readouterr().out
    assert "does not know model_type 'lama'" in out
    assert "config.yaml:3:11" in out


def test_arguments_that_name_a_model_type_are_a_job(capsys: Capture) -> None:
    """ms-swift's arguments as JSON have a `model_type` and no sizes."""
    given = {"model": "Qwen/Qwen2.5-0.5B", "model_type": "qwen2", "train_type": "lora", "max_length": 512}
    Path("sft.json").write_text(json.dumps(given))
    assert main(["estimate", "sft.json", "--gpu", "h100-80gb", "--gpus-per-node", "1", "--format", "json"]) == 0
    (plan,) = plans(capsys)
    assert plan["estimate"]


def test_a_command_line_is_a_job(capsys: Capture) -> None:
    """Behind `--` stands what is launched: its arguments are read like a script's."""
    assert main(["estimate", "--gpu", "h100-80gb", "--format", "json", "--", *COMMAND.split()]) == 0
    (plan,) = plans(capsys)
    assert plan["estimate"]["parameters"] > 1_000_000_000  # type: ignore[index]


FOLDER = COMMAND.replace("meta-llama/Llama-3.2-1B", "./base")
NAMELESS = COMMAND.replace("--model_name_or_path meta-llama/Llama-3.2-1B ", "")


@pytest.mark.parametrize("command", [FOLDER, NAMELESS, COMMAND])
def test_a_command_is_told_its_model(capsys: Capture, command: str) -> None:
    """A folder has no dimensions, and a launch may name no model at all: `--model` does, and nothing else changes."""
    known = ["estimate", "--gpu", "h100-80gb", "--format", "json"]
    assert main([*known, "--", *COMMAND.split()]) == 0
    (whole,) = plans(capsys)
    assert main([*known, "--model", "meta-llama/Llama-3.2-1B", "--", *command.split()]) == 0
    (found,) = plans(capsys)
    assert found["estimate"] == whole["estimate"]


def test_a_plan_is_estimated_with_another_model(capsys: Capture) -> None:
    """`--model` goes before the plan's own, and beside a model's name it is a mistake."""
    Path("plan.yaml").write_text(
        "memcheck: 1\nmodel: llama-3.2-1b\nhardware: {gpu: h100-80gb}\ntraining: {micro_batch_size: 1, sequence_length: 512}\n"
    )
    assert main(["estimate", "plan.yaml", "--model", "qwen2.5-0.5b"]) == 0
    assert "qwen2.5-0.5b, 494," in capsys.readouterr().out
    assert main(["estimate", "llama-3.2-1b", "--gpu", "h100-80gb", "--model", "qwen2.5-0.5b"]) == 2
    assert "--model in addition to the model" in capsys.readouterr().err


def test_what_a_command_leaves_open_is_answered_beside_it(capsys: Capture) -> None:
    """`--set` settles the questions about a script that nobody knows; the help has the line to copy."""
    command = COMMAND.replace("run_clm.py", "mine.py").split()
    asked = ["estimate", "--gpu", "a100-80gb", "--format", "json"]
    assert main([*asked, "--", *command]) == 1
    (plan,) = plans(capsys)
    assert "--set training.objective=sft --set training.method=full" in json.dumps(plan)
    answers = ("training.objective=sft", "training.method=full", "training.precision.params=bf16")
    assert main([*asked, *(word for each in answers for word in ("--set", each)), "--", *command]) == 0
    (plan,) = plans(capsys)
    assert plan["estimate"] is not None


OVER = TRAIN.replace("sequence_len: 2048", "sequence_len: 8192").replace("gradient_checkpointing: true\n", "")


def test_a_finding_about_a_config_points_at_what_it_states(tmp_path: Path, capsys: Capture) -> None:
    """At a key that is written, whatever the first remedy changes; of the file as a whole no line is shown."""
    (tmp_path / "over.yml").write_text(f"# rows of our tickets\n{OVER}", encoding="utf-8")
    assert main(["check", "over.yml", "--gpu", "l40s", "--gpus-per-node", "1", "--format", "json"]) == 1
    finding = plans(capsys)[0]["diagnostics"][0]
    assert finding["code"] == "MEM101"
    assert "sequence_len" in (tmp_path / "over.yml").read_text().splitlines()[finding["location"]["line"] - 1]
    assert all(each["line"] > 1 for each in finding["related"])
    assert finding["location"]["note"] == ""
    assert main(["check", "over.yml", "--gpu", "l40s", "--gpus-per-node", "1"]) == 1
    out = capsys.readouterr().out
    assert "rows of our tickets" not in out
    assert "over.yml:1:1" not in out
    assert main(["check", "over.yml", "--gpu", "l40s", "--gpus-per-node", "1", "-v"]) == 1
    out = capsys.readouterr().out
    assert "rows of our tickets" not in out
    assert " --> over.yml:1:1\n" in out


def test_suggest_takes_a_config(tmp_path: Path, capsys: Capture) -> None:
    """With the hardware of the command line, as check does, or with that which the project maps it to."""
    (tmp_path / "over.yml").write_text(OVER, encoding="utf-8")
    hardware = ["--gpu", "l40s", "--gpus-per-node", "1", "--nodes", "1"]
    main(["suggest", "over.yml", *hardware, "--format", "json", "--budget", "0.3"])
    assert json.loads(capsys.readouterr().out)["as_written"]["gpus"] == 1
    (tmp_path / "memcheck.toml").write_text(
        '[[configs]]\npath = "over.yml"\ngpu = "l40s"\ngpus-per-node = 1\n', encoding="utf-8"
    )
    main(["suggest", "over.yml", "--format", "json", "--budget", "0.3"])
    assert json.loads(capsys.readouterr().out)["as_written"]["gpus"] == 1
    assert main(["suggest", "over.yml", "--gpus-per-node", "2", "--diff"]) == 2
    assert "leave out --gpus-per-node" in capsys.readouterr().err
