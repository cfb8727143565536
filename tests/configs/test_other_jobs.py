"""What a file is, before what it says: other files, other jobs, scripts that leave something open, loading and saving."""

from __future__ import annotations

import pytest

from memcheck.configs.answers import Beside
from memcheck.configs.importing import import_config
from memcheck.configs.types import ConfigError, ReadSetting
from tests.configs.test_readers import ACCELERATE, DEEPSPEED, GPUS, MEGATRON, REST, TITAN, read, values


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("--experimental-attention-variant gated_delta_net", "which layers is not said"),
        (
            "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 --deterministic-mode",
            "operators",
        ),
        ("--experimental-attention-variant gdn2 --linear-attention-freq 4", "experimental attention"),
        ("--experimental-attention-variant dsa", "experimental attention"),
        ("--linear-attention-freq 4", "linear attention"),
        ("--heterogeneous-layers-config-path layers.json", "differ by a file"),
        ("--inference-dynamic-batching --inference-dynamic-batching-buffer-size-gb 20", "generates text"),
        ("--num-tokens-to-generate 32", "generates text"),
        ("--hierarchical-context-parallel-sizes two", "not a whole number"),
    ],
)
def test_megatron_jobs_of_another_kind_are_refused(added: str, message: str) -> None:
    """What decides the architecture is an error and no note, and a server is no training step."""
    imported = read("run.sh", MEGATRON.replace("--bf16", f"--bf16 {added}"), {"hardware.gpu": "h100-80gb"})
    assert any(message in each.message for each in imported.problems)


def test_a_server_is_taken_by_a_plan_that_serves() -> None:
    """The same arguments have nothing against a plan with `inference:`, which takes how much it serves."""
    from memcheck.configs.answers import reading_for
    from memcheck.configs.formats import FORMATS

    text = MEGATRON.replace("--bf16", "--bf16 --inference-max-requests 8 --inference-dynamic-batching")
    kind = FORMATS["megatron"]
    served = reading_for(kind.read(kind.load("run.sh", text), 8), serving=True)
    assert served.settings["inference.batch_size"].value == 8
    assert not [each for each in served.problems if "generates text" in each.message]


def test_a_padded_vocabulary_is_a_vocabulary() -> None:
    """`--padded-vocab-size` says how many rows there are: nothing is asked for."""
    text = MEGATRON.replace("--vocab-size 50304", "--padded-vocab-size 50432")
    imported = read("run.sh", text, {"hardware.gpu": "h100-80gb"})
    assert imported.problems == ()
    assert values(imported)["model.architecture.vocab_size"] == 50432


def test_a_written_layout_says_how_many_stages_there_are() -> None:
    """Eight stages on two pipeline ranks are four virtual stages on each, as MEM206 counts them."""
    layout = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tt|tt|tt|tt|tt|t|L'"
    imported = read("run.sh", MEGATRON.replace("--bf16", f"--bf16 {layout}"), {"hardware.gpu": "h100-80gb"})
    found = values(imported)
    assert imported.problems == ()
    assert (found["parallelism.virtual_stages"], found["parallelism.pipeline_schedule"]) == (4, "interleaved-1f1b")


def test_layers_per_virtual_stage_count_embedding_and_loss() -> None:
    """14 layers, the embedding and the loss are 16 over 2 ranks: 4 to a stage are 2 stages on each."""
    text = MEGATRON.replace("--num-layers 12", "--num-layers 14").replace(
        "--bf16",
        "--bf16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    )
    imported = read("run.sh", text, {"hardware.gpu": "h100-80gb"})
    assert imported.problems == ()
    assert values(imported)["parallelism.virtual_stages"] == 2


def test_a_list_in_brackets_is_a_list() -> None:
    """`"[2 2]"`, as functional tests write it, is two numbers."""
    text = MEGATRON.replace("--bf16", '--bf16 --hierarchical-context-parallel-sizes "[2 2]"')
    found = values(read("run.sh", text, {"hardware.gpu": "h100-80gb"}))
    assert found["training.options.hierarchical_context_parallel_sizes"] == [2, 2]


def test_a_callers_variable_is_asked_for() -> None:
    """A variable that the script does not set is named with the flag that says it; its default counts."""
    text = MEGATRON.replace("${TP}", "$SIZE")
    (problem,) = read("run.sh", text, {"hardware.gpu": "h100-80gb"}).problems
    assert "`$SIZE` is not set in the script" in problem.message
    assert "--define SIZE=8" in problem.help
    stated = {"hardware.gpu": ReadSetting("h100-80gb", "test")}
    defined = import_config("run.sh", text.encode(), stated, beside=Beside(defines={"SIZE": "4"}))
    assert values(defined)["parallelism.tensor"] == 4
    usual = read("run.sh", text.replace("$SIZE", "${SIZE:-4}"), {"hardware.gpu": "h100-80gb"})
    assert values(usual)["parallelism.tensor"] == 4


def test_a_branch_of_a_script_is_not_guessed() -> None:
    """A value that is set in an `if`, and an argument that stands in one, are refused by their names."""
    text = MEGATRON.replace("TP=2\n", 'if [ "$BIG" = 1 ]; then\n  TP=8\nelse\n  TP=2\nfi\n')
    (problem,) = read("run.sh", text, {"hardware.gpu": "h100-80gb"}).problems
    assert "`$TP` is set in an `if`" in problem.message
    inside = MEGATRON + 'if [ "$FP8" = 1 ]; then\n  EXTRA=(--fp8-format hybrid)\nfi\n'
    assert any(
        "`fp8-format`" in each.message for each in read("run.sh", inside, {"hardware.gpu": "h100-80gb"}).problems
    )


def test_a_script_that_sources_another_says_so() -> None:
    """A script without arguments of its own points at the one that has them."""
    with pytest.raises(ConfigError, match=r"run\.sh:2:8: the script's arguments are in `common\.sh`"):
        read("run.sh", "#!/bin/bash\nsource common.sh\n")


@pytest.mark.parametrize(("written", "place"), [("true", "rank0"), ("false", None)])
def test_accelerates_loading_on_one_rank_is_read(written: str, place: str | None) -> None:
    """`fsdp_cpu_ram_efficient_loading` decides host memory: one process of a node loads the model."""
    text = ACCELERATE.replace("fsdp_version: 2", f"fsdp_version: 2\n  fsdp_cpu_ram_efficient_loading: {written}")
    imported = read("fsdp.yaml", text, {"hardware.gpu": "h100-80gb"}, REST)
    assert values(imported).get("training.initialization.place") == place


def test_a_job_on_cpus_is_refused() -> None:
    """`use_cpu: true` runs on no GPU."""
    problems = read("fsdp.yaml", ACCELERATE + "use_cpu: true\n", {"hardware.gpu": "h100-80gb"}, REST).problems
    assert any("use_cpu" in each.message for each in problems)


def test_how_zero_3_makes_and_saves_the_model_is_read() -> None:
    """`zero3_init_flag: false` loads the whole model in every process; the gathered save is an option of the engine."""
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3, zero3_init_flag: false, zero3_save_16bit_model: true}\n"
    )
    found = values(read("ds.yaml", text, {"hardware.gpu": "h100-80gb"}, REST))
    assert found["training.initialization.place"] == "host"
    assert found["training.options.stage3_gather_16bit_weights_on_model_save"] is True
    engine = DEEPSPEED.replace('"stage": 3,', '"stage": 3, "gather_16bit_weights_on_model_save": true,')
    alone = values(read("ds.json", engine, GPUS, REST | {"training.micro_batch_size": 2}))
    assert alone["training.options.stage3_gather_16bit_weights_on_model_save"] is True


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n[tool.ruff]\nline-length = 120\n'),
        ("hello.json", '{"hello": 1}'),
        ("data.json", '{"input_ids": [[1, 2]], "labels": [[1, 2]]}'),
        (
            "fsdp.json",
            '{"fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "backward_prefetch": "backward_pre"}',
        ),
        ("trainer_state.json", '{"global_step": 10, "train_batch": 2, "fp16": false}'),
        ("settings.toml", "[training]\nsteps = 100\n"),
        ("other.toml", "[training]\nbatch_size = 8\nseq_len = 512\n"),
        ("rates.json", '{"train_batch_size": 32, "eval_batch_size": 8, "learning_rate": 1e-4}'),
        ("log.json", '{"backend": "fsdp2", "sequence_parallel_size": 2, "peak_mem_gb": 3.0}'),
        ("build.sh", "#!/bin/bash\npip install --upgrade pip\n"),
    ],
)
def test_files_that_are_no_job_are_no_config(name: str, text: str) -> None:
    """A suffix is no evidence: JSON and TOML of any other kind never become a plan."""
    with pytest.raises(ConfigError, match=r"this is (no config|the FSDP section)"):
        read(name, text, GPUS, REST)


def test_a_config_that_says_nothing_is_an_error() -> None:
    """Naming the format does not make a plan of a file in which nothing decides memory."""
    stated = {key: ReadSetting(value, "test") for key, value in {**GPUS, **REST}.items()}
    for name, text, format in (
        ("pyproject.toml", "[project]\nname = 'x'\n", "torchtitan"),
        ("a.json", '{"x": 1}', "deepspeed"),
    ):
        assert import_config(name, text.encode(), stated, format).problems


def test_a_default_names_no_line() -> None:
    """What torchtitan decides by itself carries no file and line, although the file has other keys."""
    settings = read("job.toml", TITAN.replace("data_parallel_shard_degree = -1\n", ""), GPUS).settings
    for key in ("parallelism.zero_stage", "parallelism.reshard_after_forward"):
        assert (settings[key].location, settings[key].assumed) == (None, True)


@pytest.mark.parametrize(("layers", "stages"), [(6, 3), (8, None)])
def test_stages_that_torchtitan_cannot_share_out_are_refused(layers: int, stages: int | None) -> None:
    """34 layers, the ends among them, make six stages of six, three for each of two ranks, and five of eight."""
    said = f"pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = {layers}\n"
    text = f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\nseq_len = 2048\n[parallelism]\n{said}'
    text += 'pipeline_parallel_schedule = "Interleaved1F1B"\n'
    found = read("job.toml", text, GPUS)
    assert any("cannot share out among 2 ranks" in each.message for each in found.problems) is (stages is None)
    if stages is not None:
        assert found.settings["parallelism.virtual_stages"].value == stages


def test_degrees_of_torchtitan_are_all_of_its_gpus() -> None:
    """16 shards were those of eight GPUs that were stated, at which torchtitan stops."""
    text = TITAN.replace("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 16")
    (problem,) = read("job.toml", text, {**GPUS, "hardware.nodes": 1, "hardware.gpus_per_node": 8}).problems
    assert "GPUs, at which torchtitan stops on another number, and 8 were stated" in problem.message
    gpus = int(problem.message.split("make ")[1].split()[0])
    assert problem.help == f"these are {gpus // 8} nodes: --nodes {gpus // 8}"
    stated = {**GPUS, "hardware.nodes": gpus // 8, "hardware.gpus_per_node": 8}
    assert not read("job.toml", text, stated).problems
