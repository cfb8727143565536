"""nanotron's configs: the world that they state, and what they hold that the stack in its place has not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memcheck.configs.direct import config_document
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "configs" / "nanotron.md").read_text()
_FOUND = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CONFIG = _FOUND[1] if _FOUND is not None else ""


def read(text: str, **stated: object) -> Imported:
    """The import of one text; ``stated`` with ``__`` for the dot."""
    values = {"hardware.gpu": "h100-80gb"} | {key.replace("__", "."): value for key, value in stated.items()}
    return import_config("run.yaml", text.encode(), {key: ReadSetting(each, "test") for key, each in values.items()})


def test_a_config_says_how_many_gpus_there_are() -> None:
    """The degrees' product, where it fits one node; else GPUs of a node are asked for."""
    found = read(CONFIG)
    assert (found.problems, found.settings["hardware.gpus_per_node"].value) == ((), 8)
    (problem,) = read(CONFIG.replace("dp: 4", "dp: 16")).problems
    assert problem.keys == ("hardware.gpus_per_node",)
    assert read(CONFIG.replace("dp: 4", "dp: 16"), hardware__gpus_per_node=8, hardware__nodes=4).problems == ()


def test_degrees_and_gpus_have_to_agree() -> None:
    """Four GPUs that are stated beside degrees of eight are an error at the config's line."""
    found = read(CONFIG, hardware__gpus_per_node=4)
    assert any("dp" in CONFIG.splitlines()[each.location.span.line - 1] for each in found.problems)
    assert [each.help for each in found.problems] == ["these are 2 nodes: --nodes 2"]


def test_the_class_of_the_model_decides_its_biases() -> None:
    """Qwen 2's class has biases where the config says so, Llama's has none."""
    biased = CONFIG.replace("is_llama_config: true", "is_qwen2_config: true\n    attention_bias: true")
    found = read(biased).settings
    assert (found["model.architecture.model_type"].value, found["training.options.model_class"].value) == (
        "qwen2",
        "qwen2",
    )
    llama = read(CONFIG.replace("is_llama_config: true", "is_llama_config: true\n    attention_bias: true"))
    assert llama.settings["model.architecture.model_type"].value == "llama"
    assert any("no biases" in each.message for each in llama.notes)


@pytest.mark.parametrize(
    ("line", "schedule"), [("pp_engine: 1f1b", "1f1b"), ("pp_engine: afab", "gpipe"), ("tp_mode: ALL_REDUCE", "gpipe")]
)
@pytest.mark.parametrize("stages", [1, 2])
def test_the_engine_is_a_schedule_with_a_pipeline_and_without(line: str, schedule: str, stages: int) -> None:
    """All forwards before all backwards hold every micro-batch on one rank, too; afab is what no key means."""
    text = CONFIG.replace("pp: 1\n", f"pp: {stages}\n").replace("dp: 4", f"dp: {4 // stages}")
    found = read(text.replace("pp_engine: 1f1b", line))
    assert (found.problems, found.settings["parallelism.pipeline_schedule"].value) == ((), schedule)


def test_the_longest_stage_of_the_data_counts() -> None:
    """A stage behind the first may train on longer sequences."""
    text = CONFIG + "data_stages:\n- {name: first}\n- {name: long, sequence_length: 16384}\n"
    text = text.replace("max_position_embeddings: 4096", "max_position_embeddings: 16384")
    assert read(text).settings["training.sequence_length"].value == 16384


def test_dimensions_are_a_model_where_a_config_is_judged_by_itself() -> None:
    """A config that describes its model, as Megatron-LM's arguments do, too, needs no model's name."""
    document = config_document("run.yaml", CONFIG.encode(), {"gpu": "h100-80gb"})
    assert document is not None
    assert [each for each in document.findings if each.severity == "error"] == []
    script = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 1024 "
    script += "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --bf16\n"
    document = config_document("run.sh", script.encode(), {"gpu": "h100-80gb", "gpus_per_node": 1})
    assert document is not None
    assert [each for each in document.findings if each.severity == "error"] == []


def test_interleaved_rotary_pairs_have_a_table_in_every_layer() -> None:
    """Llama's class alone: Qwen 2's has one module, whatever this says."""
    said = CONFIG.replace("is_llama_config: true", "is_llama_config: true\n    rope_interleaved: true")
    key = "training.options.rope_interleaved"
    assert read(said).settings[key].value is True
    assert key not in read(CONFIG).settings
    assert key not in read(said.replace("is_llama_config", "is_qwen2_config")).settings


def test_a_model_without_a_dtype_is_of_bf16() -> None:
    """What nanotron takes, whether gradients are summed in fp32 or not."""
    key = "training.precision.recipe"
    found = read(CONFIG.replace("  dtype: bfloat16\n", ""))
    assert (found.problems, found.settings[key].value, found.settings[key].assumed) == ((), "bf16-mixed", True)
    plain = CONFIG.replace("  dtype: bfloat16\n", "").replace("in_fp32: true", "in_fp32: false")
    assert read(plain).settings[key].value == "bf16-pure"
