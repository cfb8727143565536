"""Plans where the search of a folder does not look: they are named, and fail where nobody may walk round the check."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import GOOD

Capture = pytest.CaptureFixture[str]
PLACES = (".b", "node_modules", "__pycache__", ".github/workflows", "node_modules/a/b", ".b/.git2", "a/.c/d")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one plan that is checked."""
    monkeypatch.chdir(tmp_path)
    Path("plans").mkdir()
    Path("plans/ok.yaml").write_text(GOOD.format(name="ok"))
    return tmp_path


def hide(place: str) -> str:
    """Another plan in a folder of this name; its path."""
    folder = Path("plans") / place
    folder.mkdir(parents=True)
    (folder / "b.yml").write_text(GOOD.format(name="hidden"))
    return f"{folder.as_posix()}/b.yml"


def commit() -> None:
    """Make everything one commit."""
    for line in ("init -q", "add -A -f", "-c user.name=a -c user.email=a@b commit -qm x"):
        subprocess.run(["git", *line.split()], check=True)


@pytest.mark.parametrize("place", PLACES)
def test_a_plan_is_named(place: str, tree: Path, capsys: Capture) -> None:
    """One line on stderr; the checked plans decide the exit code. Twice, as kept verdicts say the same."""
    path = hide(place)
    for _ in range(2):
        assert main(["check", "plans"]) == 0
        assert path in capsys.readouterr().err
    assert main(["check", "plans", str(Path(path).parent)]) == 0


@pytest.mark.parametrize("place", PLACES)
def test_a_plan_fails_under_the_policy(place: str, tree: Path, capsys: Capture) -> None:
    """With `forbid-unseen`, the file has a finding of its own."""
    path = hide(place)
    (tree / "memcheck.toml").write_text("[policy]\nforbid-unseen = true\n")
    assert main(["check", "--format", "concise", "plans"]) == 1
    assert f"{path}:1:1: MEM001" in capsys.readouterr().out


def test_a_plan_fails_with_the_configuration_of_a_commit(tree: Path, capsys: Capture) -> None:
    """No policy is needed where the configuration is a commit's."""
    commit()
    assert main(["check", "--config-from-ref", "HEAD", "plans"]) == 0
    path = hide(".b")
    capsys.readouterr()
    assert main(["check", "--config-from-ref", "HEAD", "--format", "concise", "."]) == 1
    assert f"{path}:1:1: MEM001" in capsys.readouterr().out


def test_links_to_folders(tree: Path, capsys: Capture) -> None:
    """A link to a folder that is not searched is looked into; one to a folder that is searched hides nothing."""
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere" / "b.yaml").write_text(GOOD.format(name="b"))
    (tree / "plans" / "sub").symlink_to("../elsewhere", target_is_directory=True)
    commit()
    assert main(["check", "plans"]) == 0
    assert "plans/sub/b.yaml" in capsys.readouterr().err
    assert main(["check", "--config-from-ref", "HEAD", "plans"]) == 1
    capsys.readouterr()
    assert main(["check", "--config-from-ref", "HEAD", "."]) == 0
    assert "not checked" not in capsys.readouterr().err


def test_a_link_out_of_the_repository_is_named(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Capture
) -> None:
    """What lies there is not read."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "b.yaml").write_text(GOOD.format(name="b"))
    (tree / "plans" / "out").symlink_to(outside, target_is_directory=True)
    (tree / "plans" / "loop").symlink_to(".", target_is_directory=True)
    commit()
    assert main(["check", "plans"]) == 0
    assert "plans/out\n" in capsys.readouterr().err


def test_folders_without_plans_are_silent(tree: Path, capsys: Capture) -> None:
    """Tools keep YAML of their own in such folders; caches are not looked into unless a plan in there fails."""
    (tree / ".git").mkdir()
    (tree / ".git" / "b.yaml").write_text(GOOD.format(name="b"))
    for name in (".github", "node_modules", ".venv"):
        (tree / "plans" / name).mkdir()
        (tree / "plans" / name / "a.yaml").write_text("jobs: {}\n")
    (tree / "plans" / ".venv" / "pyvenv.cfg").write_text("")
    (tree / "plans" / ".venv" / "b.yaml").write_text(GOOD.format(name="b"))
    assert main(["check", "."]) == 0
    assert capsys.readouterr().err == ""
    (tree / "memcheck.toml").write_text("[policy]\nforbid-unseen = true\n")
    assert main(["check", "plans"]) == 1
