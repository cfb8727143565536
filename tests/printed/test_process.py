"""Whole processes over hostile names, values and arguments: neither stdout nor stderr carries a command or an escape."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.plans import write, write_broken, write_over
from tests.printed.harmless import harm

pytestmark = pytest.mark.slow

EVIL = "a\n::error::pwned\x1b[31m\u202e\u2028##[error]x"
QUOTED = '"a\\n::error::pwned\\e[31m\\u202E\\u2028##[error]x"'
"""The name as YAML writes it."""
OURS = re.compile(r"(?m)^::(group|endgroup|error|warning|notice|stop-commands|memcheck-[0-9a-f]+)\b(?!::pwned).*$")


@pytest.fixture
def environment(root: Path) -> dict[str, str]:
    """The package on the path, and nothing that changes the output."""
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING", "PYTHONUTF8", "CI")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": str(root), "PYTHONUTF8": "1", "TERM": "xterm-kitty"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Plans whose names and values are hostile, in files whose names are."""
    write_over(tmp_path, "over").rename(tmp_path / f"{EVIL}.yaml")
    named = write(tmp_path, "named")
    named.write_text(named.read_text(encoding="utf-8").replace("name: named", f"name: {QUOTED}"), encoding="utf-8")
    write_broken(tmp_path, "broken").rename(tmp_path / f"b{EVIL}.yaml")
    custom = f"{{name: {QUOTED}, memory_gib: 10}}"
    write(tmp_path, "gpu", gpu=custom)
    write(tmp_path, "spelt", activation_checkpointing=QUOTED)
    write(tmp_path, "modelled", model=QUOTED)
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "::error::gone")
    return tmp_path


def run(arguments: list[str], folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Stdout and stderr of a process, as the bytes are."""
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", *arguments], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode in (0, 1, 2), done.stderr
    return tuple(each.decode("utf-8", "surrogateescape") for each in (done.stdout, done.stderr))


LINES = [
    ["check", ".", "--statistics"],
    ["check", ".", "--format", "concise"],
    ["check", ".", "--format", "markdown", "--statistics"],
    ["check", ".", "--format", "jsonl"],
    ["check", ".", "--format", "sarif"],
    ["check", ".", "--format", "csv"],
    ["check", ".", "--format", "junit"],
    ["check", f"{EVIL}-missing.yaml"],
    ["check", f"{EVIL}.yaml", "--config", f"{EVIL}.toml"],
    ["check", "named.yaml", f"--format={EVIL}"],
    ["check", "named.yaml", f"--{EVIL}"],
    ["check", "--show-settings", f"{EVIL}.yaml"],
    ["check", "named.yaml", "--from-ref", EVIL],
    ["estimate", "named.yaml", "gpu.yaml"],
    ["estimate", "spelt.yaml"],
    ["compare", "named.yaml", "gpu.yaml"],
    ["compare", "named.yaml", "--format", "csv"],
    ["compare", "named.yaml", "--format", "markdown"],
    ["sweep", "named.yaml", "--set", f"name={QUOTED},b"],
    ["sweep", "named.yaml", "--set", f"name={QUOTED},b", "--format", "csv"],
    ["suggest", f"{EVIL}.yaml"],
    ["diff", "named.yaml", f"{EVIL}.yaml"],
    ["diff", "named.yaml", f"{EVIL}.yaml", "--format", "markdown"],
    ["export", f"b{EVIL}.yaml", "--to", "deepspeed"],
    ["import", f"{EVIL}.json"],
    ["explain", EVIL],
    ["list", EVIL],
    ["baseline", "write", ".", "--baseline", f"{EVIL}/x.json"],
    [EVIL],
]


@pytest.mark.parametrize("arguments", LINES, ids=lambda line: " ".join(line).encode("unicode_escape").decode()[:60])
def test_nothing_printed_is_a_command_or_an_escape(
    folder: Path, environment: dict[str, str], arguments: list[str]
) -> None:
    """A command line over hostile plans, or itself hostile, prints text."""
    out, err = run(arguments, folder, environment)
    assert out or err
    assert harm(out) == []
    assert harm(err) == []


def test_commands_of_the_github_format_are_its_own(folder: Path, environment: dict[str, str]) -> None:
    """Groups and annotations stay; no line of a plan's is one."""
    out, err = run(["check", ".", "--format", "github"], folder, environment)
    assert "::group::" in out
    assert harm(OURS.sub("", out)) == harm(err) == []


def test_a_value_of_the_configuration_is_no_command(folder: Path, environment: dict[str, str]) -> None:
    """An error that shows what a TOML file says shows it as text."""
    (folder / "memcheck.toml").write_text('fail-on = "x\\n::error::pwned\\u001b[31m"\n', encoding="utf-8")
    out, err = run(["check", "named.yaml"], folder, environment)
    assert "pwned" in err
    assert harm(out) == harm(err) == []


def test_a_patch_is_exact_for_programs_and_text_in_a_log(folder: Path, environment: dict[str, str]) -> None:
    """``--diff`` gives ``patch`` the file's own bytes, and a CI runner no command from a line of the plan."""
    path = folder / "broken.yaml"
    text = write_broken(folder).read_text(encoding="utf-8")
    path.write_text(text.replace("training:", "# x\n::error::pwned: 1\ntraining:"), encoding="utf-8")
    plain = {name: value for name, value in environment.items() if name != "GITHUB_ACTIONS"}
    exact, _ = run(["check", "--diff", "broken.yaml"], folder, plain)
    logged, _ = run(["check", "--diff", "broken.yaml"], folder, {**plain, "GITHUB_ACTIONS": "true"})
    assert " ::error::pwned: 1\n" in exact
    assert " \\x3a:error::pwned: 1\n" in logged


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_a_terminal_gets_the_colours_of_memcheck_alone(folder: Path, environment: dict[str, str]) -> None:
    """On a pty the report is coloured and rule codes are links, and names are text still."""
    import pty

    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "memcheck", "check", "."], cwd=folder, env=environment, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        found = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux says so when the last writer is gone
                break
            if not part:
                break
            found += part
        process.wait()
    os.close(leader)
    text = found.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    links = re.findall("\x1b]8;;([^\x1b]*)\x1b\\\\", text)
    assert "\x1b[1;31m" in text
    assert links
    assert all(address == "" or address.startswith("file://") for address in links)
    assert harm(re.sub("\x1b]8;;[^\x1b]*\x1b\\\\", "", text), colors=True) == []
