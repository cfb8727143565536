"""``estimate``, ``schema`` and ``init``."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from memcheck.__main__ import main
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty repository, on a screen of 100 columns without colours."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def estimate(capsys: Capture, *arguments: str) -> dict[str, object]:
    """The JSON record of the only plan."""
    assert main(["estimate", "good.yaml", "--format", "json", *arguments]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    return plan["estimate"]


def test_estimate_shows_where_and_when(tmp_path: Path, capsys: Capture) -> None:
    """Budget, peak, timeline, largest tensors and assumptions."""
    write(tmp_path)
    assert main(["estimate", "good.yaml"]) == 0
    out = capsys.readouterr().out
    for part in (
        "llama-3.1-8b, 8,030,261,248 parameters, 8 x h100-80gb, pytorch",
        "device memory needed",
        "allocated at each instant of a step (GiB)",
        "largest live tensors at the peak (GiB)",
        "assumed, because the plan does not say",
    ):
        assert part in out
    assert max(map(len, out.splitlines())) <= 100


def test_estimate_has_no_verdict(tmp_path: Path, capsys: Capture) -> None:
    """A plan that does not fit can be estimated, so the exit code is 0; only one without numbers fails."""
    write_over(tmp_path)
    write_broken(tmp_path)
    assert main(["estimate", "over.yaml"]) == 0
    assert main(["estimate", "over.yaml", "broken.yaml", "--format", "json"]) == 1
    text = capsys.readouterr().out
    found = {plan["name"]: plan for plan in json.loads(text[text.index("{\n") :])["plans"]}
    assert "diagnostics" not in found["over"]
    assert found["broken"]["diagnostics"][0]["code"] == "MEM011"
    assert main(["estimate", "missing.yaml"]) == 2


def test_estimate_writes_files_of_several_formats(tmp_path: Path, capsys: Capture) -> None:
    """Any number of them, beside what is printed; a page to pass on has figures and remedies, and no findings."""
    write_over(tmp_path)
    files = ["--format", "html=over.html", "--format", "csv=over.csv", "--format", "json=over.json"]
    assert main(["estimate", "over.yaml", *files, "--format", "full"]) == 0
    assert "device memory needed" in capsys.readouterr().out
    page = (tmp_path / "over.html").read_text(encoding="utf-8")
    assert "Does not fit" in page
    assert "What would help" in page
    assert "MEM101" not in page
    kinds = {line.split(",")[0] for line in (tmp_path / "over.csv").read_text(encoding="utf-8").splitlines()}
    assert kinds >= {"plan", "instant", "rank", "tensor", "remedy", "gpu", "interval", "assumption", "formula"}
    assert "finding" not in kinds
    assert json.loads((tmp_path / "over.json").read_text(encoding="utf-8"))["plans"][0]["estimate"]
    assert main(["estimate", "over.yaml", "--format", "sarif"]) == 2
    assert "unknown format 'sarif'" in capsys.readouterr().err


def test_set_changes_values_as_if_they_were_written(tmp_path: Path, capsys: Capture) -> None:
    """Scalars, mappings and sections that the plan lacks can be set; the file stays as it is."""
    path = write(tmp_path)
    before, text = estimate(capsys), path.read_text()
    more = estimate(capsys, "--set", "training.micro_batch_size=4")
    assert more["allocated_bytes"] > before["allocated_bytes"]
    loss = estimate(capsys, "--set", "training.micro_batch_size=4", "--set", "training.loss={kind: chunked, chunks: 8}")
    assert loss["allocated_bytes"] < more["allocated_bytes"]
    flat = estimate(capsys, "--set", "policy.overhead=10%")
    assert flat["device_bytes"] / flat["allocated_bytes"] == pytest.approx(1.1, rel=1e-3)
    assert path.read_text() == text


def test_set_keeps_what_a_short_form_says(tmp_path: Path, capsys: Capture) -> None:
    """A field of `gpu: h100-80gb` or `optimizer: adamw` is set beside the name, which would otherwise be lost."""
    path = write(tmp_path)
    text = path.read_text() + "  optimizer: adamw-8bit\n"
    path.write_text(text)
    before = estimate(capsys)
    small = estimate(capsys, "--set", "hardware.gpu.memory_gib=8")
    assert small["capacity_bytes"] == 8 * 2**30
    assert small["allocated_bytes"] == before["allocated_bytes"]
    path.write_text(text.replace("adamw-8bit", "{name: adamw-8bit, implementation: for-loop}"))
    written = estimate(capsys)
    path.write_text(text)
    assert estimate(capsys, "--set", "training.optimizer.implementation=for-loop") == written
    layers = estimate(capsys, "--set", "model.overrides={num_hidden_layers: 16}")
    assert layers["parameters"] < before["parameters"]
    assert main(["estimate", "good.yaml", "--set", "hardware.gpus_per_node.x=1"]) == 1
    assert "must be a whole number" in " ".join(capsys.readouterr().out.split())


def test_set_leaves_aliases_alone(tmp_path: Path, capsys: Capture) -> None:
    """Changing one use of an anchor does not change the others."""
    path = write(tmp_path)
    text = path.read_text().replace("gpus_per_node: 8", "gpus_per_node: &eight 8").replace("name: good", "name: good")
    path.write_text(text.replace("micro_batch_size: 1", "micro_batch_size: *eight"))
    parts = estimate(capsys, "--set", "training.micro_batch_size=1")
    assert parts == estimate(capsys, "--set", "training.micro_batch_size=1", "--set", "hardware.gpus_per_node=8")


@pytest.mark.parametrize(
    "setting",
    [
        "training.micro_batch_size",
        "=4",
        "training..x=1",
        "a={",
        "a=2026-01-45",
        "a=&b [*b]",
        "hardware.gpu={name: mine, memory_gib: .nan}",
        "policy.overhead=.inf",
    ],
)
def test_unreadable_setting_is_a_usage_error(tmp_path: Path, capsys: Capture, setting: str) -> None:
    """``--set`` wants a dotted key and a YAML value whose numbers are finite."""
    write(tmp_path)
    assert main(["estimate", "good.yaml", "--set", setting]) == 2
    assert "--set" in capsys.readouterr().err


def test_set_value_is_validated(tmp_path: Path, capsys: Capture) -> None:
    """What is set is checked like what is written."""
    write(tmp_path)
    assert main(["estimate", "good.yaml", "--set", "training.micro_batch_size=many"]) == 1
    out = capsys.readouterr().out
    assert "MEM013" in out
    assert "not the text `many`" in " ".join(out.split())


def test_formulas_on_request(tmp_path: Path, capsys: Capture) -> None:
    """``--formulas`` explains every component with numbers and sources."""
    write(tmp_path)
    assert main(["estimate", "good.yaml", "--formulas"]) == 0
    out = capsys.readouterr().out
    formulas = out[out.index("\nformulas\n") :]
    for component in ("parameters", "gradients", "optimizer states", "activations"):
        assert f"\n{component}  " in formulas
    assert formulas.count("\n  from ") >= 4


@pytest.mark.parametrize("what", ["plan", "report", "suggest", "compare", "sweep", "diff", "verify", "list"])
def test_schemas_are_printed_as_shipped(root: Path, capsys: Capture, what: str) -> None:
    """The printed schema is the file, byte for byte, and a valid draft-07 schema."""
    assert main(["schema", what]) == 0
    text = capsys.readouterr().out
    assert text == (root / "schemas" / f"{what}.schema.json").read_text(encoding="utf-8")
    jsonschema.Draft7Validator.check_schema(json.loads(text))


def test_plan_schema_is_the_default(capsys: Capture) -> None:
    """``memcheck schema`` is what editors want."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "memcheck plan"


@pytest.mark.parametrize(
    "arguments",
    [[], ["--gpu", "RTX-4090", "--gpus", "1", "--model", "gpt2"], ["--gpus", "16", "--model", "Qwen/Qwen2.5-14B"]],
    ids=" ".join,
)
def test_first_plan_passes(tmp_path: Path, capsys: Capture, arguments: list[str]) -> None:
    """``init`` writes a commented plan and its schema; the plan passes, and its modeline points at the schema."""
    assert main(["init", *arguments]) == 0
    assert "\npass  plan  plan.yaml\n" in capsys.readouterr().out
    text = (tmp_path / "plan.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=plan.schema.json\nmemcheck: 1\n")
    schema = json.loads((tmp_path / "plan.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(text))
    assert main(["check", "plan.yaml"]) == 0


def test_a_first_plan_fits_a_terminal(tmp_path: Path, capsys: Capture) -> None:
    """No line of it is broken on 80 columns."""
    assert main(["init", "--model", "llama-3.3-70b", "--gpus", "64"]) == 0
    assert max(map(len, (tmp_path / "plan.yaml").read_text().splitlines())) <= 80


def test_init_overwrites_nothing(tmp_path: Path, capsys: Capture) -> None:
    """An existing file stays as it is, and so does an existing schema."""
    (tmp_path / "plan.yaml").write_text("mine")
    (tmp_path / "plan.schema.json").write_text("mine")
    assert main(["init"]) == 2
    assert "plan.yaml exists" in capsys.readouterr().err
    assert main(["init", "other.yaml"]) == 0
    assert (tmp_path / "plan.yaml").read_text() == (tmp_path / "plan.schema.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama-3.1-8bb"], "llama-3.1-8b"),
        (["--gpu", "h100-81gb"], "h100-80gb"),
        (["--gpus", "12"], "12 GPUs do not fill nodes of 8"),
        (["--gpus", "0"], "--gpus"),
        (["no/such/plan.yaml"], "cannot write no/such/plan.yaml"),
    ],
)
def test_init_refuses_what_it_cannot_write(tmp_path: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """Unknown names and impossible numbers leave no file behind."""
    assert main(["init", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.yaml"))


def test_bare_command_shows_the_help(capsys: Capture) -> None:
    """Without a command there is nothing to do: the help, and the code of a usage error."""
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


ANSWERS = {
    *("--gpu", "--gpus", "--gpus-per-node", "--nodes", "--host-memory", "--model", "--micro-batch-size", "--from"),
    *("--sequence-length", "--images", "--framework", "--framework-version", "--define", "--set"),
}
"""What `check`, `estimate` and `import` are told of a job."""


def test_command_surface_is_frozen(capsys: Capture) -> None:
    """Commands and options that users may rely on; removing one breaks somebody's pipeline."""
    from memcheck.cli.app import COMMANDS, app

    context = app.make_context("memcheck", ["check"])
    options = {
        name: {option for parameter in app.get_command(context, name).params for option in parameter.opts}
        for name in COMMANDS
    }
    assert options == {
        "baseline": set(),
        "check": {
            "paths",
            "--format",
            "--fail-on",
            "--fail-above",
            "--warn-above",
            "--uncertain",
            "--unpacked",
            "--profile",
            "--select",
            "--ignore",
            "--extend-select",
            "--no-cache",
            "--no-suppressions",
            *ANSWERS,
            "--baseline",
            "--fix",
            "--unsafe-fixes",
            "--diff",
            "--show-settings",
            "--config",
            "--from-ref",
            "--config-from-ref",
            "--shard",
            "--jobs",
            "-j",
            "--skip-unmarked",
            "--brief",
            "--allow-empty",
            "--exit-zero",
            "--quiet",
            "--verbose",
            "-v",
            "--statistics",
            "-q",
            "--color",
            "--stdin-filename",
        },
        "compare": {"paths", "--gpu", "--format", "--config", "--color"},
        "diff": {
            "paths",
            "--from-ref",
            "--config-from-ref",
            "--no-suppressions",
            "--fail-on-increase",
            "--fail-on-regression",
            "--min-delta",
            "--gpu",
            "--profile",
            "--select",
            "--ignore",
            "--allow-empty",
            "--format",
            "--config",
            "--quiet",
            "-q",
            "--color",
        },
        "estimate": {
            *("paths", "--formulas", "--format", "--config", "--color", "--method", "--zero-stage"),
            *ANSWERS,
        },
        "explain": {"rule", "--color"},
        "export": {"path", "--to", "--apply-remedy", "--set", "--document", "--output", "-o", "--strict"},
        "import": {
            "path",
            *ANSWERS,
            "--output",
            "-o",
            "--strict",
        },
        "init": {
            "path",
            "--model",
            "--gpu",
            "--gpus",
            "--gpus-per-node",
            "--method",
            "--sequence-length",
            "--micro-batch-size",
            "--zero-stage",
        },
        "link": {"plan", "--document", "--compare", "--base-url", "--read", "--config"},
        "list": {"catalog", "words", "--format", "--color"},
        "schema": {"what"},
        "run": {"words", "--write", *ANSWERS},
        "submit": {"words", "--check-only", "--unread", "--config", *ANSWERS},
        "suggest": {
            "plan",
            "--goal",
            "--keep",
            "--budget",
            "--top",
            "--apply",
            "--diff",
            "--document",
            "--gpu",
            "--gpus-per-node",
            "--nodes",
            "--fail-above",
            "--config",
            "--format",
            "--color",
        },
        "sweep": {"path", "--set", "--format", "--progress", "--config", "--color"},
        "verify": {
            "plan",
            "--trace",
            "--measure",
            "--observed",
            "--record",
            "--drift",
            "--set",
            "--layers",
            "--rank",
            "--document",
            "--tolerance",
            "--format",
            "--color",
        },
        "ui": {"path", "--port", "--no-browser"},
        "why": {
            "evidence",
            "--plan",
            "--document",
            "--model",
            "--gpu",
            "--gpus-per-node",
            "--nodes",
            "--set",
            "--format",
            "--color",
        },
    }
