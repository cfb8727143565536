"""What lies under the names of a pull request: links, devices, pipes, and the folder of git itself."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge.opener import RefusedError, open_file, read_start, read_whole, resolved
from tests.sources import trees

GOOD = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: torchtitan, micro_batch_size: 1, sequence_length: 4096}
"""
SECRET = "tok3n-of-the-runner"

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other links and shorter paths")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one plan that fits, beside a secret that is not in it; the working directory."""
    (tmp_path / "secret.yaml").write_text(f"memcheck: {SECRET}\n", encoding="utf-8")
    secret = {"model_type": "llama", "hidden_size": SECRET, "num_hidden_layers": SECRET}
    (tmp_path / "secret.json").write_text(json.dumps(secret), encoding="utf-8")
    folder = tmp_path / "checkout"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config.yaml").write_text(f"memcheck: {SECRET}\n", encoding="utf-8")
    (folder / "good.yaml").write_text(GOOD, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def check(root: Path, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """One process that may take 1 GiB of memory and 60 seconds: its exit code and everything it printed."""
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); "
    start = f"{limited}sys.argv[0] = 'memcheck'; runpy.run_module('memcheck', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", start, "check", *arguments],
        env={**os.environ, "PYTHONPATH": str(root), "MEMCHECK_TOKEN": SECRET},
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def hostile(kind: str) -> None:
    """Put something that is no file of the repository under `evil.yaml`."""
    evil = Path("evil.yaml")
    if kind == "pipe":
        os.mkfifo(evil)
    else:
        evil.symlink_to(
            {
                "environment": "/proc/self/environ",
                "zeros": "/dev/zero",
                "terminal": "/dev/tty",
                "itself": "evil.yaml",
                "outside": "../secret.yaml",
                "git": ".git/config.yaml",
            }[kind]
        )


KINDS = ("environment", "zeros", "terminal", "itself", "outside", "git", "pipe")


@posix
@pytest.mark.parametrize("named", [(".",), ("evil.yaml", "good.yaml")], ids=["walked", "named"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_file_is_a_finding_on_it(root: Path, repository: Path, kind: str, named: tuple[str, ...]) -> None:
    """The file fails as MEM001, shows nothing of what it leads to, and the plan beside it is still judged."""
    hostile(kind)
    code, said = check(root, *named)
    assert code == 1, said
    assert "MEM001" in said
    assert "evil.yaml:1:1" in said
    assert "checked 2 plans: 1 passed, 1 failed" in said
    assert SECRET not in said


@posix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["extends: evil.yaml", "source: {axolotl: evil.yaml}"])
def test_what_a_plan_names_is_opened_alike(root: Path, repository: Path, kind: str, key: str) -> None:
    """`extends` and `source` end in a finding on the plan that names the file."""
    hostile(kind)
    (repository / "plan.yaml").write_text(f"{GOOD}{key}\n", encoding="utf-8")
    code, said = check(root, "plan.yaml", "good.yaml")
    assert code == 1, said
    assert ("MEM006" if key.startswith("extends") else "MEM503") in said
    assert "checked 2 plans: 1 passed, 1 failed" in said
    assert SECRET not in said


@pytest.mark.parametrize("config", ["../secret.json", "ABSOLUTE", "link.json", ".git/config.json"])
def test_a_model_config_lies_in_the_repository(root: Path, repository: Path, config: str) -> None:
    """A config elsewhere, named outright or through a link, is a finding that shows none of its values."""
    outside = repository.parent / "secret.json"
    if config == "link.json":
        (repository / config).symlink_to(outside)
    (repository / ".git" / "config.json").write_bytes(outside.read_bytes())
    written = str(outside) if config == "ABSOLUTE" else config
    plan = GOOD.replace("llama-3.1-8b", f"{{config: '{written}'}}")
    (repository / "plan.yaml").write_text(plan, encoding="utf-8")
    code, said = check(root, "plan.yaml")
    assert code == 1, said
    assert "MEM024" in said
    assert SECRET not in said


@posix
@pytest.mark.parametrize("name", ["memcheck.toml", "pyproject.toml", ".memcheck-baseline.json"])
@pytest.mark.parametrize("target", ["/dev/zero", "../secret.yaml", "SELF"])
def test_a_configuration_is_no_way_out(root: Path, repository: Path, name: str, target: str) -> None:
    """A linked configuration or baseline stops the run with an error that names it, and is not passed over."""
    (repository / name).symlink_to(name if target == "SELF" else target)
    baseline = ["--baseline", name] if name.endswith(".json") else []
    code, said = check(root, "good.yaml", *baseline)
    assert code == 2, said
    assert name in said
    assert "link" in said
    assert SECRET not in said


@pytest.mark.slow
@posix
def test_a_linked_folder_is_not_entered(root: Path, repository: Path) -> None:
    """A link to a folder outside is refused by name and not followed from above; a loop inside ends the walk."""
    (repository / "away").symlink_to("..")
    (repository / "loop").symlink_to(".")
    code, said = check(root, ".")
    assert (code, "checked 1 plan: 1 passed" in said) == (0, True), said
    code, said = check(root, "away", "good.yaml")
    assert code == 1, said
    assert "leads out of the repository" in said
    assert SECRET not in said


@pytest.mark.slow
@posix
def test_folders_deeper_than_the_stack_are_searched(root: Path, repository: Path) -> None:
    """A plan below 1,500 folders is found and judged."""
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    Path("bad.yaml").write_text("memcheck: 1\nmodel: none\n", encoding="utf-8")
    try:
        os.chdir(repository)
        code, said = check(root, ".")
    finally:  # pytest's own cleaning would overflow the stack
        subprocess.run(["rm", "-r", "d"], cwd=repository, check=True)
    assert code == 1, said[-2000:]
    assert "checked 2 plans: 1 passed, 1 failed" in said


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no endless device")
def test_endless_stdin_is_a_finding(root: Path, repository: Path) -> None:
    """Of stdin no more is read than of a file."""
    code, said = check(root, "-", stdin=b"memcheck: 1\n" + b"#" * 3_000_000)
    assert code == 1, said
    assert "MEM007" in said


@posix
def test_links_inside_a_repository_are_followed(repository: Path) -> None:
    """A link to a file of the same repository reads it, through a linked folder too."""
    (repository / "folder").mkdir()
    (repository / "folder" / "b.yaml").symlink_to("../good.yaml")
    (repository / "also").symlink_to("folder")
    assert read_whole("also/b.yaml", 10_000) == GOOD.encode()


@posix
def test_links_above_a_repository_are_the_machines(repository: Path) -> None:
    """A repository that is reached through a link, as `/tmp` on some systems, is read like any other."""
    (repository.parent / "tmp").symlink_to(repository)
    assert read_whole(str(repository.parent / "tmp" / "good.yaml"), 10_000) == GOOD.encode()


@posix
def test_a_link_does_not_borrow_the_repository_it_leads_to(repository: Path) -> None:
    """A linked folder counts as part of the repository it lies in, not of a neighbour's."""
    other = repository.parent / "other"
    (other / ".git").mkdir(parents=True)
    (other / "plan.yaml").write_text(GOOD, encoding="utf-8")
    (repository / "link").symlink_to("../other")
    with pytest.raises(RefusedError, match="leads out of the repository"):
        resolved("link/plan.yaml")


@posix
def test_outside_of_git_a_link_stays_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a repository the working directory takes its place; elsewhere, the folder that the link lies in."""
    (tmp_path / "secret.yaml").write_text("memcheck: 1\n", encoding="utf-8")
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "good.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "work" / "sub" / "in.yaml").symlink_to("../good.yaml")
    (tmp_path / "work" / "sub" / "out.yaml").symlink_to("../../secret.yaml")
    monkeypatch.chdir(tmp_path / "work")
    assert read_start("sub/in.yaml", 10_000) == GOOD.encode()
    with pytest.raises(RefusedError, match="the working directory, which is in no git repository"):
        open_file("sub/out.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="its folder, which is in no git repository"):
        open_file(str(tmp_path / "work" / "sub" / "in.yaml"))


@posix
@pytest.mark.parametrize("link", ["report.json", "reports"])
def test_a_report_is_written_through_no_link_that_leads_out(root: Path, repository: Path, link: str) -> None:
    """A committed link, of the file or of its folder, has the report refused, and what it leads to stays as it was."""
    outside = repository.parent / "outside"
    outside.mkdir()
    target = outside / "report.json"
    target.write_text("before", encoding="utf-8")
    os.symlink(target if link == "report.json" else outside, link)
    file = link if link == "report.json" else "reports/report.json"
    code, said = check(root, f"--format=json={file}", "good.yaml")
    assert code == 2
    assert f"cannot write the report to {file}: it is a link that leads out of the repository" in said
    assert target.read_text(encoding="utf-8") == "before"


@posix
def test_a_report_is_written_through_no_link_into_git(root: Path, repository: Path) -> None:
    """A committed link makes no report a hook of git."""
    os.symlink(".git", "reports")
    code, said = check(root, "--format=json=reports/pre-commit", "good.yaml")
    assert code == 2
    assert "it lies inside `.git`" in said
    assert not (repository / ".git" / "pre-commit").exists()


@posix
def test_a_report_is_written_where_the_user_says(root: Path, repository: Path) -> None:
    """A link inside the repository is followed, and a file beyond it that is named as such is written."""
    os.symlink("real.json", "report.json")
    code, said = check(root, "--format=json=report.json", "--format=json=../beside.json", "good.yaml")
    assert code == 0, said
    assert (repository / "real.json").read_bytes() == (repository.parent / "beside.json").read_bytes() != b""


@posix
def test_a_baseline_is_written_through_no_link_that_leads_out(repository: Path) -> None:
    """A committed link under the configured name makes `baseline write` create no file elsewhere."""
    Path("memcheck.toml").write_text('baseline = "accepted.json"\n', encoding="utf-8")
    os.symlink(repository.parent / "new.json", "accepted.json")
    assert main(["baseline", "write", "good.yaml"]) == 2
    assert not (repository.parent / "new.json").exists()


def test_the_size_is_limited_before_reading(tmp_path: Path) -> None:
    """A file of 1 TiB without content is refused, or its start read, at once."""
    file = tmp_path / "huge.yaml"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(RefusedError, match="larger than 1,000 bytes"):
        read_whole(str(file), 1000)
    assert len(read_start(str(file), 1000)) == 1001


OWN = {
    "cli/kept.py": "what this user keeps, bounded and by descriptor, in a folder that nobody else can write",
    "catalog/names.py": "the catalog, which is part of the package",
    "cli/replace.py": "the report that it writes, to replace it",
    "cli/init.py": "the schema, which is part of the package",
    "cli/schema.py": "the schema, which is part of the package",
    "edge/imports.py": "bytecode, which is part of the package",
    "edge/opener.py": "opens every other file",
    "edge/screen.py": "the null device, in place of a stream that is closed",
    "edge/json_text.py": "measured tables and the schema, which are part of the package",
    "live/server.py": "the page, which is part of the package",
    "report/html/shell.py": "the style sheet, which is part of the package",
}
"""Modules that open a file themselves, and which."""


def opens(call: ast.Call) -> bool:
    """Whether a call opens a file for anything but writing it."""
    name = call.func
    if isinstance(name, ast.Attribute):
        on_os = isinstance(name.value, ast.Name) and name.value.id in {"os", "io", "codecs", "mmap"}
        return name.attr in {"read_text", "read_bytes"} or (on_os and name.attr in {"open", "fdopen", "mmap"})
    if not isinstance(name, ast.Name) or name.id != "open":
        return False
    mode = next((each.value for each in call.keywords if each.arg == "mode"), (call.args[1:] or [None])[0])
    if isinstance(mode, ast.Name) and mode.id == "mode":  # the one writer of reports takes "w" or "wb"
        return False
    written = mode.value if isinstance(mode, ast.Constant) else "r"
    return not set(str(written)) & set("wxa")


@pytest.mark.slow
def test_nothing_else_opens_a_file(root: Path) -> None:
    """Every other module reads through the opener: what it reads may be hostile."""
    found = set()
    for file, tree in trees(root / "memcheck", ["open", "read_text", "read_bytes", "mmap"]):
        if any(isinstance(node, ast.Call) and opens(node) for node in ast.walk(tree)):
            found.add(file.relative_to(root / "memcheck").as_posix())
    assert found == set(OWN)


@posix
def test_a_first_plan_is_written_through_no_link_into_git(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A committed link to a folder makes no plan that `init` writes a hook of git."""
    os.symlink(".git", "plans")
    assert main(["init", "plans/pre-commit"]) == 2
    assert "cannot write plans/pre-commit: it lies inside `.git`" in capsys.readouterr().err
    assert not (repository / ".git" / "pre-commit").exists()


def test_a_baseline_under_a_name_that_no_file_can_have(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A zero byte in the configured name is an error of the configuration, whatever reads or writes the baseline."""
    (repository / "memcheck.toml").write_text('baseline = "a\\u0000b"\n', encoding="utf-8")
    for command in (["check", "good.yaml"], ["baseline", "write", "good.yaml"], ["baseline", "show"]):
        assert main(command) == 2
        assert "no file can have this name" in capsys.readouterr().err
