"""``check --shard I/N``: several machines judge a repository together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcheck.__main__ import main
from memcheck.cli.judging import only_share
from memcheck.cli.options import Share
from memcheck.config.find import PlanFile
from memcheck.rules.result import Unreadable
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]

FILES = st.lists(st.text(min_size=1, max_size=9).map(lambda path: PlanFile(path, b"")), max_size=9, unique=True)


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(out: str) -> list[str]:
    """The files of a JSON report."""
    return [plan["path"] for plan in json.loads(out)["plans"]]


@given(FILES, st.integers(1, 9))
def test_every_file_is_in_one_share(files: list[PlanFile], count: int) -> None:
    """The shares of any list of files are the list, without a file in two of them."""
    shares = [list(only_share(iter(files), Share(number, count), [])) for number in range(1, count + 1)]
    assert sorted(file.path for share in shares for file in share if isinstance(file, PlanFile)) == sorted(
        file.path for file in files
    )


@given(FILES, st.text(min_size=1), st.integers(1, 9), st.data())
def test_a_new_file_moves_no_other(files: list[PlanFile], new: str, count: int, data: st.DataObject) -> None:
    """The share of a file stays what it is, whatever else the repository holds."""
    share = Share(data.draw(st.integers(1, count)), count)
    before = list(only_share(iter(files), share, []))
    after = list(only_share(iter([PlanFile(new, b""), *files]), share, []))
    assert [file for file in after if file.path != new] == [file for file in before if file.path != new]


def test_shares_are_spread() -> None:
    """Numbered names, the usual ones, do not all fall to one machine."""
    counts = [sum(Share(number, 4).takes(f"plans/{each:03}.yaml") for each in range(400)) for number in (1, 2, 3, 4)]
    assert min(counts) > 70


def test_the_shards_together_are_the_run(tmp_path: Path, capsys: Capture) -> None:
    """The plans of all shards are those of the whole run, with its verdicts; a shard fails by its own plans alone."""
    for number in range(6):
        write(tmp_path, f"good-{number}")
    write_broken(tmp_path)
    assert main(["check", "--format", "json"]) == 1
    whole = json.loads(capsys.readouterr().out)["plans"]
    shards, exits = [], {}
    for number in (1, 2, 3):
        code = main(["check", "--format", "json", "--shard", f"{number}/3"])
        found = json.loads(capsys.readouterr().out)["plans"]
        shards += found
        exits[code] = [*exits.get(code, []), *(plan["path"] for plan in found if plan["status"] != "passed")]
    assert sorted(shards, key=lambda plan: plan["path"]) == whole
    assert exits == {0: [], 1: ["broken.yaml"]}


def test_an_empty_share_is_clean_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    """With fewer files than machines some have none: they pass, write their report, and say why it is empty."""
    write(tmp_path)
    empty = next(f"{number}/3" for number in (1, 2, 3) if not Share(number, 3).takes("good.yaml"))
    assert main(["check", "--format", "json=report.json", "--shard", empty]) == 0
    assert f"nothing to check in shard {empty}: the only plan file is in another shard" in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["plans"] == []
    assert main(["check", "--shard", empty]) == 0
    assert "checked 0 plans: 0 passed, 0 failed, 1 file in other shards" in capsys.readouterr().out


def test_no_plan_at_all_is_still_an_error(capsys: Capture) -> None:
    """A wrong path must not pass on every machine."""
    assert main(["check", "--shard", "1/3"]) == 2
    assert "nothing to check" in capsys.readouterr().err


def test_fixes_stay_in_the_share(tmp_path: Path) -> None:
    """``--fix`` writes the files of its share alone."""
    names = [f"plan-{number}.yaml" for number in range(6)]
    for name in names:
        path = write(tmp_path, name.removesuffix(".yaml"))
        path.write_text(path.read_text().replace("micro_batch_size", "per_device_train_batch_size"))
    before = {name: (tmp_path / name).read_text() for name in names}
    main(["check", "--fix", "--shard", "1/2"])
    changed = {name for name in names if (tmp_path / name).read_text() != before[name]}
    assert changed == {name for name in names if Share(1, 2).takes(name)}


def test_an_unreadable_path_belongs_to_one_share(capsys: Capture) -> None:
    """A path that does not exist stops one machine, and no other."""
    found = []
    for number in (1, 2, 3):
        taken = list(only_share(iter([Unreadable("gone.yaml", "No such file")]), Share(number, 3), []))
        assert main(["check", "gone.yaml", "--shard", f"{number}/3"]) == (2 if taken else 0)
        found += taken
    assert len(found) == 1


def test_a_shard_judges_against_the_baseline(tmp_path: Path, capsys: Capture) -> None:
    """What the baseline accepts of files in other shards is not called gone."""
    write_over(tmp_path)
    main(["baseline", "write"])
    capsys.readouterr()
    for number in (1, 2):
        assert main(["check", "--baseline", ".memcheck-baseline.json", "--shard", f"{number}/2"]) == 0
        assert "accepts what is gone" not in capsys.readouterr().err
