"""``memcheck compare``: what fits where, as every format has it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

from memcheck.__main__ import main
from memcheck.catalog.names import find_gpu
from memcheck.memory.fit import ABOVE, FITS, TOO_LARGE, UNCERTAIN, on_gpu
from memcheck.what_if.compare import CONSUMER, DATA_CENTRE
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder, on a screen of 100 columns without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def rows(capsys: Capture, *arguments: str) -> list[dict[str, object]]:
    """The JSON rows of a comparison that succeeds."""
    assert main(["compare", *arguments, "--format", "json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_a_server_has_no_columns_of_training(tmp_path: Path, capsys: Capture) -> None:
    """A script that names no GPU is compared on those of the command line, by what a server has."""
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-8B --max-model-len 8192\n")
    assert main(["compare", "serve.sh", "--gpu", "h100-80gb,a100-40gb"]) == 0
    out = capsys.readouterr().out
    assert "KV tokens" in out
    assert "MEM503" not in out
    assert "recompute" not in out
    assert "batch" not in out
    assert [row["gpu"] for row in rows(capsys, "serve.sh", "--gpu", "h100-80gb,a100-40gb")] == [
        "h100-80gb",
        "a100-40gb",
    ]


def test_gpus_of_data_centres_are_the_default(tmp_path: Path, capsys: Capture) -> None:
    """The plan's own GPU first, then those that data centres have; every one is in the catalog."""
    write(tmp_path)
    found = [row["gpu"] for row in rows(capsys, "good.yaml")]
    assert found[0] == "h100-80gb"
    assert sorted(found) == sorted((*DATA_CENTRE, *CONSUMER))
    assert all(find_gpu(name).name == name for name in (*DATA_CENTRE, *CONSUMER))


def test_figures_are_those_of_estimate(tmp_path: Path, capsys: Capture) -> None:
    """The same bytes as ``estimate --gpu`` has; headroom and utilization follow from them."""
    write(tmp_path)
    for row in rows(capsys, "good.yaml", "--gpu", "a100-40gb,b200"):
        assert main(["estimate", "good.yaml", "--format", "json", "--gpu", str(row["gpu"])]) == 0
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        for name in (
            "device_bytes",
            "needed_bytes",
            "capacity_bytes",
            "interval_bytes",
            "needed_interval_bytes",
            "utilization",
            "instant",
        ):
            assert row[name] == plan["estimate"][name], name
        parts = plan["estimate"]["components_bytes"]
        assert row["components_bytes"] == {name: count for name, count in parts.items() if count}
        assert row["headroom_bytes"] == row["capacity_bytes"] - row["needed_bytes"]


def test_speed_is_relative_to_the_first_row(tmp_path: Path, capsys: Capture) -> None:
    """The plan on its own GPU is 1; a B200 is faster, an A100 slower."""
    write(tmp_path)
    found = {row["gpu"]: row["relative_speed"] for row in rows(capsys, "good.yaml")}
    assert found["h100-80gb"] == 1
    assert found["a100-80gb"] < 1 < found["b200"]


def test_a_plan_is_legal_on_one_gpu_and_not_on_another(tmp_path: Path, capsys: Capture) -> None:
    """bf16 on a V100: the row names the rule, and has no figures."""
    write(tmp_path)
    good, bad = rows(capsys, "good.yaml", "--gpu", "h100,v100-32gb")
    assert good["verdict"] == "fits"
    assert bad["verdict"] == "illegal"
    assert "MEM301" in [problem["code"] for problem in bad["problems"]]
    assert bad["device_bytes"] is None
    assert bad["step"] is None
    assert main(["compare", "good.yaml", "--gpu", "h100,v100-32gb"]) == 0
    assert "v100-32gb: MEM301: " in capsys.readouterr().out


def test_several_plans(tmp_path: Path, capsys: Capture) -> None:
    """Plan by plan; one that no GPU can price is shown, and the exit code is 1."""
    write(tmp_path)
    write_over(tmp_path)
    assert [row["plan"] for row in rows(capsys, "good.yaml", "over.yaml", "--gpu", "h200")] == ["good", "over"]
    write_broken(tmp_path)
    assert main(["compare", "good.yaml", "broken.yaml", "--gpu", "h200"]) == 1
    out = capsys.readouterr().out
    assert "\nbroken\n" in out
    assert "MEM011" in out


def test_what_fails_comes_first(tmp_path: Path, capsys: Capture) -> None:
    """GPUs of a plan and plans of a table: failing, uncertain, then fitting, and equals as the command line has them."""
    write(tmp_path)
    write_over(tmp_path)
    line = ["compare", "good.yaml", "over.yaml", "--gpu", "b200,rtx-4090,h200,t4"]
    assert main([*line, "--format", "markdown"]) == 0
    table = [part.split("|") for part in capsys.readouterr().out.splitlines() if part.startswith("| ")][1:]
    assert [cells[2].strip() for cells in table if cells[1].strip() == "good"] == ["rtx-4090", "t4", "b200", "h200"]
    assert main(line) == 0
    out = capsys.readouterr().out
    good = out[out.index("good") :]
    assert [good.index(f"\n  {gpu} ") for gpu in ("rtx-4090", "t4", "b200", "h200")] == sorted(
        good.index(f"\n  {gpu} ") for gpu in ("rtx-4090", "t4", "b200", "h200")
    )
    assert [row["gpu"] for row in rows(capsys, "good.yaml", "--gpu", "h200,t4")] == ["h200", "t4"]


def test_a_plan_that_fails_on_its_own_gpu_comes_before_one_that_passes(tmp_path: Path, capsys: Capture) -> None:
    """Whatever other GPUs would do."""
    write(tmp_path)
    write_over(tmp_path)
    assert main(["compare", "good.yaml", "over.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.index("\nover") < out.index("\ngood")


def test_serving_is_compared_by_its_tokens(root: Path, capsys: Capture) -> None:
    """Decoding reads memory: an H200 is as much faster than an H100 as its memory is; a prompt's time is in the JSON."""
    plan = str(root / "examples" / "llama-3.3-70b-inference-4xh100.yaml")
    h100, h200 = rows(capsys, plan, "--gpu", "h100,h200")[:2]
    assert h200["relative_speed"] == pytest.approx(4.8 / 3.35, rel=0.1)
    assert h200["step"]["prefill_seconds"] == pytest.approx(h100["step"]["prefill_seconds"], rel=0.1)


def test_every_format_holds_every_row(tmp_path: Path, capsys: Capture) -> None:
    """CSV, Markdown and JSON have a line per row; the JSON is valid by its schema; files take =FILE."""
    write(tmp_path)
    assert main(["schema", "compare"]) == 0
    schema = json.loads(capsys.readouterr().out)
    arguments = ["--format", "json=c.json", "--format", "csv=c.csv", "--format", "markdown=c.md"]
    assert main(["compare", "good.yaml", "--gpu", "h100,v100-32gb,a100-80gb", *arguments]) == 0
    document = json.loads((tmp_path / "c.json").read_text())
    jsonschema.Draft7Validator(schema).validate(document)
    table = list(csv.DictReader(io.StringIO((tmp_path / "c.csv").read_text())))
    markdown = (tmp_path / "c.md").read_text()
    for record, line in zip(document["rows"], table, strict=True):
        assert line["gpu"] == record["gpu"]
        assert line["device_bytes"] == str(record["device_bytes"] or "")
        assert f"| {record['gpu']}" in markdown
        if record["step"] is not None:
            assert float(line["step_seconds"]) == record["step"]["seconds"]


def test_the_table_fits_the_screen(tmp_path: Path, capsys: Capture) -> None:
    """No line is wider than the terminal, with several plans too."""
    write(tmp_path)
    write_over(tmp_path)
    assert main(["compare", "good.yaml", "over.yaml"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good.yaml", "--gpu", "h1000"], "--gpu"),
        (["good.yaml", "--gpu", ","], "names no GPU"),
        (["good.yaml", "--format", "xml"], "xml"),
        (["good.yaml", "--format", "json="], "names no file"),
        (["missing.yaml"], "missing.yaml"),
        (["."], "good.yaml"),
    ],
)
def test_usage_errors(tmp_path: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """Unknown GPUs and formats and missing files are exit code 2; a folder is searched."""
    write(tmp_path)
    code = main(["compare", *arguments])
    streams = capsys.readouterr()
    if arguments == ["."]:
        assert code == 0
    else:
        assert code == 2
        assert message in streams.err


def test_verdicts_are_those_of_the_gate() -> None:
    """Beyond the capacity, above the plan's limit, an interval beyond either: the gravest of them counts."""
    assert on_gpu(89, 90, 100, 0.9) == FITS
    assert on_gpu(89, 91, 100, 0.9) == UNCERTAIN
    assert on_gpu(89, 101, 100, 0.9) == UNCERTAIN
    assert on_gpu(91, 99, 100, 0.9) == ABOVE
    assert on_gpu(91, 101, 100, 0.9) == ABOVE
    assert on_gpu(101, 120, 100, 0.9) == TOO_LARGE


def test_a_node_that_lacks_memory_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Where the GPU has room and the node has not, the verdict is the node's, with need and memory in a note."""
    monkeypatch.chdir(root)
    plan = "examples/llama-3.3-70b-zero3-offload-8xa100.yaml"
    assert main(["compare", plan, "--gpu", "a100-80gb", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["verdict"] == "host-memory"
    assert row["headroom_bytes"] > 0
    assert row["host_bytes_per_node"] > row["host_capacity_bytes"] == 1000 * 2**30
    for form in ("full", "markdown"):
        assert main(["compare", plan, "--gpu", "a100-80gb", "--format", form]) == 0
        text = capsys.readouterr().out
        assert "host too small" in text
        need = f"{row['host_bytes_per_node'] / 2**30:,.2f} GiB of host memory for what is offloaded by its 8 GPUs"
        assert f"{need}, and has 1,000.00 GiB" in " ".join(text.split())


def test_the_walk_through_of_four_a100(root: Path, capsys: Capture) -> None:
    """Llama 3.1 8B, 8k context, four A100 40 GB: a calculator's TP 4 with batch 4 and its ZeRO-2 alternative do not
    fit; what a search finds does, with the same global batch and without recompute.
    """
    plan = str(root / "examples" / "llama-3.1-8b-four-a100-40gb.yaml")
    first, second, best = rows(capsys, plan, "--gpu", "a100-40gb")
    assert [row["verdict"] for row in (first, second, best)] == ["does-not-fit", "does-not-fit", "fits"]
    assert {row["batch"]["global_batch_size"] for row in (first, second, best)} == {32}
    assert first["batch"]["micro_batch_size"] == 4
    assert first["utilization"] > 2
    assert second["step"]["recompute_share"] > 0.3
    assert best["step"]["recompute_share"] == 0
    assert second["relative_speed"] < best["relative_speed"] < 1


def test_markdown_explains_its_columns_as_the_terminal_does(tmp_path: Path, capsys: Capture) -> None:
    """What batch, recompute, speed and TFLOPS are stands below both tables, in the same words."""
    write(tmp_path)
    assert main(["compare", "good.yaml", "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    for words in ("batch: sequences per GPU", "recompute: arithmetic", "speed: tokens per second", "not a measurement"):
        assert words in shown
