"""What lies in the cache directory and is not as this user wrote it there is as good as absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memcheck.cli import kept
from tests.cache.kept import Runs, others_own
from tests.cli.plans import write, write_over

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """A repository with a plan that fails, whose verdict is kept."""
    made = Runs(tmp_path, monkeypatch, capsys)
    write_over(made.plans)
    assert made.check()[0] == 1
    assert made.judged() == []
    return made


def cut(file: Path) -> None:
    """The end is missing."""
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    """One letter is another."""
    file.write_bytes(file.read_bytes().replace(b'"failed"', b'"passed"'))


def empty(file: Path) -> None:
    """Nothing is left."""
    file.write_bytes(b"")


def bloat(file: Path) -> None:
    """It is larger than anything that is kept."""
    file.write_bytes(file.read_bytes() + b" " * kept.LARGEST)


def swap(file: Path) -> None:
    """It is the verdict on another plan, as it was written for that."""
    other = file.with_name("other")
    text = kept.keep
    folder = os.open(file.parent, os.O_RDONLY)
    text(folder, "other", file.read_text(encoding="utf-8")[64:].replace("failed", "passed"))
    os.close(folder)
    other.replace(file)


def link(file: Path) -> None:
    """It is a link to the file."""
    file.rename(file.with_name("real"))
    file.symlink_to("real")


def pipe(file: Path) -> None:
    """It is a pipe that nobody writes to."""
    file.unlink()
    os.mkfifo(file, 0o600)


def open_to_all(file: Path) -> None:
    """Others may write it."""
    file.chmod(0o666)


def open_folder(file: Path) -> None:
    """Others may put files beside it."""
    file.parent.chmod(0o777)


@pytest.mark.parametrize(
    "change",
    [
        cut,
        flip,
        empty,
        bloat,
        swap,
        link,
        pipe,
        open_to_all,
        open_folder,
        others_own,
        lambda file: others_own(file.parent),
    ],
)
def test_it_is_judged_anew(runs: Runs, change: Callable[[Path], None]) -> None:
    """The plan fails as before, whatever the directory says."""
    (file,) = runs.files()
    change(file)
    assert runs.judged() == ["over.yaml"]
    assert runs.check() == runs.anew()


def test_a_directory_of_the_checkout_is_not_used(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the environment says so, not in a repository, not below the working directory, and not by a link."""
    inside = runs.plans / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(inside))
    assert runs.judged() == ["over.yaml"]
    assert not inside.exists()
    (runs.plans / ".git").rmdir()
    assert runs.judged() == ["over.yaml"]
    assert not inside.exists()
    inside.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs.plans.parent / "linked"))
    (runs.plans.parent / "linked").symlink_to(inside)
    assert runs.judged() == ["over.yaml"]
    assert list(inside.iterdir()) == []


def test_a_relative_directory_does_not_count(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG specification has it: the user's own directory is taken instead."""
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("HOME", str(runs.plans.parent / "home"))
    assert kept.location().startswith(str(runs.plans.parent / "home"))
    assert runs.judged() == ["over.yaml"]
    assert not (runs.plans / "caches").exists()


def test_kept_verdicts_are_json(runs: Runs) -> None:
    """Behind its seal a file is one JSON document, of lists, mappings, texts and numbers."""
    for file in runs.files():
        seal, document = file.read_text(encoding="utf-8")[:64], file.read_text(encoding="utf-8")[64:]
        assert len(bytes.fromhex(seal)) == 32
        assert isinstance(json.loads(document), list)


def test_only_the_user_can_look(runs: Runs) -> None:
    """The directory and its files are the user's alone, whatever the umask is."""
    before = os.umask(0)
    try:
        write(runs.plans, "more")
        runs.check()
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in runs.files()} == {"0o600"}
    assert oct(runs.kept.stat().st_mode & 0o777) == "0o700"


def test_a_place_that_takes_nothing_costs_no_verdict(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """No home, a file in place of the directory: the plan is judged, and nothing is said."""
    cold = runs.anew()
    taken = runs.plans.parent / "file"
    taken.write_text("", encoding="utf-8")
    for place in (taken, Path("/proc/nowhere")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert runs.check() == cold


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the files that were used least lately are removed, and what others remove meanwhile is no error."""
    monkeypatch.setattr(kept, "FEW", 3)
    monkeypatch.setattr(kept, "MOST_BYTES", 4 * (64 + 10))
    folder = kept.opened(str(tmp_path / "kept"), make=True)
    assert folder is not None
    for number in range(6):
        kept.keep(folder, f"{number}", "0123456789")
        os.utime(tmp_path / "kept" / f"{number}", (number, number))
    assert kept.fetch(folder, "0") == "0123456789"  # used now, so that it is the youngest
    kept.bound(folder)
    assert sorted(os.listdir(folder)) == ["0", "4", "5"]
    kept.keep(folder, "large", "x" * kept.LARGEST)
    assert kept.fetch(folder, "large") is None
    os.close(folder)


@pytest.mark.slow
def test_writers_side_by_side(tmp_path: Path) -> None:
    """While two processes write one name again and again, a reader finds a whole text, one of the two, each time."""
    import multiprocessing

    folder = kept.opened(str(tmp_path / "kept"), make=True)
    assert folder is not None
    texts = [letter * 40_000 for letter in "ab"]
    kept.keep(folder, "name", texts[0])
    writers = [multiprocessing.get_context("fork").Process(target=rewrite, args=(folder, text)) for text in texts]
    for each in writers:
        each.start()
    seen = set()
    while any(each.is_alive() for each in writers):
        seen.add(kept.fetch(folder, "name"))
    assert seen <= set(texts)
    assert os.listdir(folder) == ["name"]
    os.close(folder)


def rewrite(folder: int, text: str) -> None:
    """Write one name many times."""
    for _ in range(500):
        kept.keep(folder, "name", text)
