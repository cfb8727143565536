"""``memcheck check --fix`` and ``--diff``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fix_writes_and_then_checks(tmp_path: Path, capsys: Capture) -> None:
    """Files are mended first, and the report and the exit code are about what is left."""
    good = write(tmp_path).read_bytes()
    broken = write_broken(tmp_path)
    broken.chmod(0o640)
    assert main(["check", ".", "--fix", "--format", "concise"]) == 0
    streams = capsys.readouterr()
    assert streams.out == "checked 2 plans: 2 passed, 0 failed\n"
    assert streams.err == "memcheck: fixed 1 finding in 1 file\n"
    assert broken.read_bytes() == good.replace(b"name: good", b"name: broken")
    assert broken.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == [".git", "broken.yaml", "good.yaml"]
    assert main(["check", ".", "--fix", "--format", "concise"]) == 0
    assert capsys.readouterr().err == ""


def test_fix_reports_what_it_cannot_mend(tmp_path: Path, capsys: Capture) -> None:
    """A plan that does not fit is not changed by ``--fix``, and fails; with ``--unsafe-fixes`` its first remedy is made."""
    over = write(tmp_path, "over", gpu="a100-40gb", zero_stage="0")
    text = over.read_text()
    assert main(["check", ".", "--fix", "--format", "concise"]) == 1
    assert over.read_text() == text
    capsys.readouterr()
    assert main(["check", ".", "--fix", "--unsafe-fixes", "--format", "concise"]) == 0
    assert "fixed 1 finding in 1 file" in capsys.readouterr().err
    assert over.read_text() != text


def test_links_are_followed(tmp_path: Path) -> None:
    """A link stays a link; the file that it leads to is mended."""
    (tmp_path / "real").mkdir()
    real = write_broken(tmp_path / "real")
    (tmp_path / "link.yaml").symlink_to(real)
    assert main(["check", "link.yaml", "--fix"]) == 0
    assert (tmp_path / "link.yaml").is_symlink()
    assert "micro_batch_size" in real.read_text()


@pytest.mark.parametrize("change", ["plain", "crlf", "no last line end", "bom"])
def test_diff_is_what_fix_would_do(tmp_path: Path, capsys: Capture, change: str) -> None:
    """The diff goes to stdout, nothing is written, and ``patch`` makes of it what ``--fix`` does."""
    path = write_broken(tmp_path)
    data = path.read_bytes().replace(b"activation_checkpointing: full", b"activation_checkpointing: Full")
    forms = {
        "crlf": data.replace(b"\n", b"\r\n"),
        "no last line end": data.rstrip(b"\n"),
        "bom": b"\xef\xbb\xbf" + data,
    }
    data = forms.get(change, data)
    path.write_bytes(data)
    write(tmp_path)
    assert main(["check", ".", "--diff"]) == 1
    streams = capsys.readouterr()
    assert path.read_bytes() == data
    assert streams.err == "memcheck: would fix 2 findings in 1 file\n"
    assert streams.out.startswith("--- broken.yaml\n+++ broken.yaml\n@@ ")
    (tmp_path / "diff").write_bytes(streams.out.encode())
    subprocess.run(["git", "apply", "-p0", "--unsafe-paths", "--directory=.", "diff"], check=True, env=no_git())
    patched = path.read_bytes()
    path.write_bytes(data)
    assert main(["check", ".", "--fix"]) == 0
    assert path.read_bytes() == patched != data
    capsys.readouterr()
    assert main(["check", ".", "--diff"]) == 0
    assert capsys.readouterr() == ("", "")


def no_git() -> dict[str, str]:
    """The environment in which git finds no repository."""
    return {**os.environ, "GIT_DIR": "nowhere"}


def test_diff_of_stdin(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is piped in can be shown, but not be written."""
    path = write_broken(tmp_path)
    with path.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["check", "-", "--diff", "--stdin-filename", "x.yaml"]) == 1
    assert capsys.readouterr().out.startswith("--- x.yaml\n")
    assert main(["check", "-", "--fix"]) == 2
    assert "stdin cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--unsafe-fixes"], "--unsafe-fixes alone does nothing"),
        (["--fix", "--gpu", "h200"], "not on another --gpu"),
        (["--diff", "empty"], "nothing to fix"),
    ],
)
def test_refused(tmp_path: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """Options that make no sense together are refused before anything is written."""
    (tmp_path / "empty").mkdir()
    path = write_broken(tmp_path)
    text = path.read_text()
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert path.read_text() == text


CONFIG = """\
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 8
optimizer: adamw_torch
bf16: true
"""


def test_configs_are_not_fixed_and_that_is_said(tmp_path: Path, capsys: Capture) -> None:
    """With and without --gpu, for --fix and --diff: the message names the command that makes a plan of the config."""
    write_broken(tmp_path)
    Path("train.yml").write_text(CONFIG)
    for option in ("--fix", "--diff"):
        assert main(["check", option, "--unsafe-fixes", "train.yml", "--gpu", "rtx-4090", "--gpus", "1"]) == 2
        error = capsys.readouterr().err
        assert "--fix and --diff edit plans, not configs: train.yml" in error
        assert "`memcheck import train.yml --gpu rtx-4090 --gpus 1 --output plan.yaml`" in error
        assert "leave out" not in error
        main(["check", option, "--unsafe-fixes", "train.yml"])
        assert "edit plans, not configs: train.yml" in capsys.readouterr().err
        assert Path("train.yml").read_text() == CONFIG
    main(["check", "--fix", "broken.yaml"])
    assert "configs" not in capsys.readouterr().err


def test_missing_files_are_reported_once(tmp_path: Path, capsys: Capture) -> None:
    """A path that cannot be read is named, the others are mended or shown, and the exit code is 2."""
    write_broken(tmp_path)
    for option in ("--diff", "--fix"):
        assert main(["check", "broken.yaml", "no.yaml", option]) == 2
        assert capsys.readouterr().err.count("cannot read no.yaml") == 1


def test_a_file_that_changed_meanwhile_is_kept(tmp_path: Path) -> None:
    """What somebody else wrote after the file was read is not overwritten."""
    from memcheck.cli.review.fix import replace_files
    from memcheck.errors import UsageError

    path = write_over(tmp_path)
    with pytest.raises(UsageError, match="changed while it was being fixed"):
        replace_files({str(path): b"old"}, {str(path): b"new"})
    assert b"rtx-4090" in path.read_bytes()
    with pytest.raises(UsageError, match="cannot write"):
        replace_files({str(tmp_path / "no.yaml"): b"old"}, {str(tmp_path / "no.yaml"): b"new"})
