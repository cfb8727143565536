"""Configs that name files outside of their repository, and checkouts that hold modules of Python's own names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import GOOD

Capture = pytest.CaptureFixture[str]
SECRET = '{"TOP_SECRET": 1, "zero_optimization": {"stage": "TOP_SECRET"}}'
AXOLOTL = (
    "base_model: NousResearch/Llama-3.2-1B\ndeepspeed: {name}\nmicro_batch_size: 1\nsequence_len: 2048\n"
    "datasets: [{{path: x, type: alpaca}}]\noutput_dir: x\n"
)
ACCELERATE = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 8\n"
    "deepspeed_config: {{deepspeed_config_file: {name}}}\n"
)
SCRIPT = (
    "deepspeed train.py --deepspeed {name} --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 "
    "--output_dir x --learning_rate 1\n"
)
CONFIGS = {"a.yaml": AXOLOTL, "acc.yaml": ACCELERATE, "run.sh": SCRIPT}
HARDWARE = ["--gpu", "h100-80gb", "--gpus-per-node", "8"]
COMMANDS = {
    "import": ["import", "FILE", *HARDWARE],
    "check": ["check", "FILE", *HARDWARE],
    "estimate": ["estimate", "FILE", *HARDWARE],
    "suggest": ["suggest", "FILE", *HARDWARE],
    "diff": ["diff", "FILE", "FILE", *HARDWARE],
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in a folder that also holds a secret; the command runs in a folder of the repository."""
    (tmp_path / "secret.json").write_text(SECRET)
    inner = tmp_path / "r" / "sub"
    inner.mkdir(parents=True)
    (tmp_path / "r" / ".git").mkdir()
    monkeypatch.chdir(inner)
    return inner


@pytest.mark.parametrize("how", ["relative", "absolute", "a link"])
@pytest.mark.parametrize("file", CONFIGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_config_reads_nothing_outside(command: str, file: str, how: str, repository: Path, capsys: Capture) -> None:
    """Whichever command reads the config, nothing of a file outside of its repository is shown."""
    secret = repository.parent.parent / "secret.json"
    name = {"relative": "../../secret.json", "absolute": str(secret), "a link": "here.json"}[how]
    (repository / "here.json").symlink_to(secret)
    (repository / file).write_text(CONFIGS[file].format(name=name))
    code = main([file if each == "FILE" else each for each in COMMANDS[command]])
    shown = capsys.readouterr()
    assert "TOP_SECRET" not in shown.out + shown.err
    assert code in (1, 2)


def test_import_says_why(repository: Path, capsys: Capture) -> None:
    """The error names the line of the config, and that the file is not read."""
    (repository / "a.yaml").write_text(AXOLOTL.format(name="../../secret.json"))
    assert main(["import", "a.yaml", *HARDWARE]) == 1
    assert "a.yaml:2: `../../secret.json` lies outside the config's repository" in capsys.readouterr().err


@pytest.mark.parametrize("place", [".", "..", "../top"])
def test_import_reads_inside(place: str, repository: Path, capsys: Capture) -> None:
    """A file of the repository is read where it always was."""
    folder = repository / place
    folder.mkdir(exist_ok=True)
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    (repository / "a.yaml").write_text(AXOLOTL.format(name=f"{place}/ds.json"))
    assert main(["import", "a.yaml", *HARDWARE]) == 0
    assert "zero_stage: 3" in capsys.readouterr().out


def test_import_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Below the folder where the command runs, it reads what lies there."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    (tmp_path / "configs" / "a.yaml").write_text(AXOLOTL.format(name="ds/z3.json"))
    monkeypatch.chdir(tmp_path)
    assert main(["import", "configs/a.yaml", *HARDWARE]) == 0
    assert "zero_stage: 3" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_imports_nothing_of_the_checkout(tmp_path: Path) -> None:
    """The installed command, as `torchrun --no-python` starts it, finds no module in the working directory."""
    for name in ("torch", "yaml", "json", "memcheck", "transformers", "click", "multiprocessing", "difflib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)\n")
    (tmp_path / "a.yaml").write_text(GOOD.format(name="a"))
    command = Path(sys.executable).with_name("memcheck")
    if not command.exists():
        pytest.skip("no installed command")
    for line in (["check", "a.yaml"], ["estimate", "a.yaml"], ["check", "--fix", "a.yaml"]):
        assert subprocess.run([command, *line], cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_nobody_is_told_to_run_the_module(root: Path) -> None:
    """Neither a page nor a message says `-m memcheck` in a line to be run."""
    told = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "memcheck").rglob("*.py")]
    for path in told:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "-m memcheck verify" not in line, path
            assert not line.startswith(("torchrun -m memcheck", "python -m memcheck ", "$ python -m memcheck ")), path
    assert "--no-python memcheck verify" in (root / "docs" / "internals" / "verify.md").read_text(encoding="utf-8")
