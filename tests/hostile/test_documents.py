"""Documents made to break their reader: every one ends in a located error, at once, and never in a defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge.toml import TomlError, parse_toml
from memcheck.families.registry import read_architecture
from memcheck.frameworks.torch import tower_tensors as whole_model
from memcheck.judge import Gate, check_file
from memcheck.models.reader import ArchitectureError
from memcheck.what_if import with_remedies
from tests.cli.plans import GOOD, write
from tests.timing.plans import job as timed_job

Capture = pytest.CaptureFixture[str]

MEGATRON = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {tensor: 8, pipeline: PIPELINE}
training: {framework: megatron, micro_batch_size: 1, sequence_length: 2048, options: {OPTIONS}}
"""

TOML = {
    "lists in lists": ("x = " + "[" * 100_000 + "]" * 100_000, "nested deeper"),
    "tables in tables": ("x = " + "{a=" * 20_000 + "1" + "}" * 20_000, "nested deeper"),
    "lists a little too deep": ("x = " + "[" * 102 + "]" * 102, "nested deeper"),
    "a long dotted key": ("a" + ".a" * 100_000 + " = 1", "a key has more than 100 parts"),
    "a long dotted key in a table": ("x = {" + 'a . "a".' * 100 + "a = 1}", "a key has more than 100 parts"),
    "a long table name": ("[" + "a." * 20_000 + "a]\nx = 1", "a key has more than 100 parts"),
    "5,000 digits": ("fail-above = " + "9" * 5000, "(4300"),
    "5,000 hexadecimal digits": ("fail-above = 0x" + "f" * 5000, "64 bits"),
}


@pytest.mark.parametrize("kind", TOML)
def test_configuration(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A configuration that no parser survives is a wrong configuration: exit 2 with its name and the reason."""
    text, words = TOML[kind]
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "memcheck.toml").write_text(text)
    assert main(["check", "good.yaml"]) == 2
    error = capsys.readouterr().err
    assert "memcheck.toml is not valid TOML: " in error
    assert words in error
    assert len(error) < 500


@pytest.mark.parametrize("kind", TOML)
def test_torchtitan_config(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A framework's config in TOML has the bounds of memcheck's own."""
    text, words = TOML[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.toml").write_text(text)
    assert main(["import", "train.toml", "--from", "torchtitan"]) == 1
    error = capsys.readouterr().err
    assert "train.toml:1:1: not TOML: " in error
    assert words in error


def test_toml_within_the_bounds() -> None:
    """What people write passes: 100 levels, 100 parts, 64 bits, and dots that are no key's."""
    deepest = "x = " + "[" * 100 + "]" * 100
    assert parse_toml(deepest)["x"] != []
    assert parse_toml("a" + ".a" * 99 + " = 1").keys() == {"a"}
    assert parse_toml(f"x = {2**64 - 1}") == {"x": 2**64 - 1}
    assert parse_toml(f'x = "{"." * 5000}"') == {"x": "." * 5000}
    assert len(parse_toml(f"x = [{'1.5, ' * 500}]")["x"]) == 500  # type: ignore[arg-type]


def test_toml_errors_have_the_parsers_place() -> None:
    """Line and column are the parser's where it names them."""
    with pytest.raises(TomlError) as found:
        parse_toml("a = 1\nb = = 2\n")
    assert (found.value.line, found.value.column) == (2, 5)
    assert str(found.value) == f"{found.value.message} (at line 2, column 5)"


def test_deep_json_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A config that nests as deep as JSON's parser goes is read without a stack of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "a":' + '{"a":' * 900 + "1" + "}" * 901)
    assert main(["import", "ds.json", "--from", "deepspeed"]) == 1
    assert "defect" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "number", ["0x" + "f" * 5000, "0b" + "1" * 50_000, "0" + "7" * 5000, "1" + ":1" * 400, "1" + ":1" * 400 + ".5"]
)
def test_numbers_that_python_cannot_write(number: str) -> None:
    """A number in another base is too large for its key, as one of decimal digits is."""
    text = GOOD.format(name="good").replace("2048", number)
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert traces == []
    assert [finding.code for finding in result.findings] == ["MEM013"]


@pytest.mark.parametrize("value", [[], {}, [[]], ["a"]])
@pytest.mark.parametrize("key", ["num_experts", "head_dim", "num_local_experts", "hidden_act"])
def test_containers_where_sizes_belong(key: str, value: object) -> None:
    """A list or a mapping never is the number that the rest of a model config says, even one that no family reads."""
    config = {
        "model_type": "mixtral",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1024,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        key: value,
    }
    with pytest.raises(ArchitectureError, match=key):
        read_architecture(config)


@pytest.mark.parametrize(
    "options",
    [
        "decoder_last_pipeline_num_layers: 40",
        "decoder_first_pipeline_num_layers: 40",
        "num_layers_in_last_pipeline_stage: 3",
        "decoder_first_pipeline_num_layers: 1000000000, decoder_last_pipeline_num_layers: 12",
        "decoder_first_pipeline_num_layers: 20, decoder_last_pipeline_num_layers: 12",
    ],
)
def test_end_stages_of_the_only_stage(options: str) -> None:
    """Without a pipeline there are no end stages: other layers than the model's are refused at the option."""
    text = MEGATRON.replace("PIPELINE", "1").replace("OPTIONS", options)
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert traces == []
    assert result.estimate is None
    (finding,) = result.findings
    assert finding.code == "MEM206"
    assert finding.location.span.line == 5


def test_only_stage_with_all_layers() -> None:
    """A stated end stage that holds the whole model is what Megatron builds."""
    text = MEGATRON.replace("PIPELINE", "1").replace("OPTIONS", "decoder_last_pipeline_num_layers: 32")
    (result,), _ = check_file("plan.yaml", text.encode(), Gate())
    assert result.status == "passed"


@pytest.mark.parametrize("pipeline", ["2", "4", "8"])
@pytest.mark.parametrize("end", ["decoder_last_pipeline_num_layers", "decoder_first_pipeline_num_layers"])
def test_end_stages_beyond_the_layers(pipeline: str, end: str) -> None:
    """An end stage with more layers than the model is refused, whatever the rules that were chosen."""
    text = (
        MEGATRON.replace("PIPELINE", pipeline)
        .replace("OPTIONS", f"{end}: 40")
        .replace("gpus_per_node: 8", "gpus_per_node: 8, nodes: 8")
    )
    (result,), traces = check_file("plan.yaml", text.encode(), Gate(ignore=("MEM206",)))
    assert traces == []
    assert result.estimate is None
    assert result.status != "passed"


def test_lists_of_unknown_words() -> None:
    """Each item of a list is one of an option's words, as the word alone would be."""
    text = MEGATRON.replace("PIPELINE", "1").replace("OPTIONS", "cp_comm_type: [core_attn]")
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert traces == []
    assert [finding.code for finding in result.findings if finding.severity == "error"] == ["MEM406"]


def test_tiles_without_a_token() -> None:
    """A shuffle of more patches than a tile has leaves no image token."""
    vision = {"hidden_size": 768, "intermediate_size": 3072, "image_size": 512, "patch_size": 16}
    text = {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49280,
    }  # fmt: skip
    config = {
        "model_type": "smolvlm", "scale_factor": 255, "text_config": text,
        "vision_config": {**vision, "num_hidden_layers": 12, "num_attention_heads": 12},
    }  # fmt: skip
    with pytest.raises(ArchitectureError, match="makes no image token"):
        read_architecture(config)


def test_more_layers_than_are_told_apart() -> None:
    """Layers that share tensors or read an encoder are units of their own: 1,000 of them at the most."""
    t5 = {"model_type": "mt5", "d_model": 2048, "num_layers": 8191, "num_heads": 32, "d_kv": 64, "d_ff": 5120}
    with pytest.raises(ArchitectureError, match="num_layers = 8191 is outside"):
        read_architecture({**t5, "vocab_size": 250112, "feed_forward_proj": "gated-gelu"})
    words = {"vocab_size": 30000, "max_position_embeddings": 512}
    albert = {"model_type": "albert", "hidden_size": 1024, "num_hidden_layers": 24, "inner_group_num": 1000}
    with pytest.raises(ArchitectureError, match="24,000 times"):
        read_architecture({**albert, "num_attention_heads": 16, "intermediate_size": 4096, **words})


def test_checkpoints_of_no_layer() -> None:
    """Megatron would make them without end; no remedy proposes full recompute beside the option either."""
    options = "recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 0"
    text = MEGATRON.replace("PIPELINE", "1").replace("OPTIONS", options)
    (result,), _ = check_file("plan.yaml", text.encode(), Gate())
    assert result.estimate is None
    assert [finding.pointer for finding in result.findings if finding.severity == "error"] == [
        "/training/options/recompute_num_layers"
    ]
    small = text.replace("recompute_granularity: full, recompute_method: uniform, ", "").replace(
        "h100-80gb", "rtx-3060"
    )
    (failed,), _ = check_file("plan.yaml", small.encode(), Gate())
    assert failed.status == "failed"


REFERENCES = {
    "extends": "extends: {name}",
    "model": "model: {{config: {name}}}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8}}\n"
    "training: {{framework: torchtitan, micro_batch_size: 1, sequence_length: 128}}",
    "source": "hardware: {{gpu: h100-80gb, gpus_per_node: 8}}\nsource: {{torchtitan: {name}}}",
}


@pytest.mark.parametrize("key", REFERENCES)
def test_names_that_no_file_can_have(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero byte in the name of another file is a file that cannot be read, at its key."""
    monkeypatch.chdir(tmp_path)
    text = "memcheck: 1\n" + REFERENCES[key].format(name=r'"a\0b"')
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert traces == []
    (finding,) = (each for each in result.findings if r"a\x00b" in each.message or "a\0b" in each.message)
    assert finding.severity == "error"
    assert finding.location.span.line > 1


@pytest.mark.slow
def test_more_documents_than_a_file_has_room_for() -> None:
    """The first 2,000 documents are judged, and the file is refused at the next one."""
    results, traces = check_file("plan.yaml", b"memcheck: 1\n---\n" * 65_000, Gate())
    assert traces == []
    assert len(results) == 2001
    assert [finding.code for finding in results[-1].findings] == ["MEM007"]
    assert results[-1].findings[0].location.span.line == 4001
    (alone,), _ = check_file("plan.yaml", b"---\n" * 200_000, Gate())
    assert [finding.code for finding in alone.findings] == ["MEM007"]


def test_experts_in_bits_that_nothing_shards() -> None:
    """Packed weights have no size that FSDP2 could pad, and the search for a remedy asks it nonetheless."""
    text = """\
memcheck: 1
model: mistral-small-4-119b
hardware: {gpu: a800-80gb, gpus_per_node: 2}
training: {framework: pytorch, micro_batch_size: 8, sequence_length: 8192, method: lora, base: awq-4bit}
"""
    (result,), traces = check_file("plan.yaml", text.encode(), Gate(remedies=with_remedies))
    assert traces == []
    assert {"MEM101", "MEM408"} <= {finding.code for finding in result.findings}


def test_layers_that_are_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers a model has, and however many answers are tried: a config may have 8,191."""
    job = timed_job()
    seen: list[object] = []
    known = whole_model.layer_tensors
    monkeypatch.setattr(whole_model, "layer_tensors", lambda *of: seen.append(of) or known(*of))
    assert len(list(whole_model.model_tensors(job, job.architecture))) == 34
    assert len(seen) == 1


def test_unknown_keys_take_time_in_proportion() -> None:
    """What a key may have meant is looked up, not searched for: a hundred times as many take a hundred times as long."""
    from memcheck.plan.mend import _elsewhere, _places

    text = "memcheck: 1\n" + "".join(f"k{number}: 1\n" for number in range(3000))
    before = _places.cache_info().misses
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert traces == []
    assert sum(finding.code == "MEM011" for finding in result.findings) == 3000
    assert _places.cache_info().misses <= before + 1
    assert _elsewhere("gpus_per_node", []) == ["hardware.gpus_per_node"]


def test_long_keys_with_many_keys_below_them() -> None:
    """Each key below repeats the one above it in its path: such a key is refused, and a config's paths have a budget."""
    from memcheck.configs.config_file import MOST_PATHS, load_json
    from memcheck.configs.types import ConfigError

    text = GOOD.format(name="good") + f"? {'k' * 100_000}\n: {{{', '.join(f'k{n}: 1' for n in range(5000))}}}\n"
    (result,), traces = check_file("plan.yaml", text.encode(), Gate())
    assert (traces, [finding.code for finding in result.findings]) == ([], ["MEM007"])
    inner = ", ".join(f'"k{number}": 1' for number in range(5000))
    with pytest.raises(ConfigError, match=f"{MOST_PATHS:,} characters"):
        load_json("ds.json", f'{{"{"k" * 100_000}": {{{inner}}}}}')
