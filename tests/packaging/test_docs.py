"""The pages that are generated stay what their sources say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.check import DEFAULT_FAIL_ABOVE
from memcheck.config.read import READERS, read_settings


@pytest.mark.slow
def test_generated_pages_are_fresh(root: Path) -> None:
    """The plan format and the rule pages are what docs.generate would write now."""
    command = [sys.executable, "-m", "docs.generate", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_example_is_complete(root: Path, tmp_path: Path) -> None:
    """The example configuration of docs/ci.md sets every key there is, and is accepted."""
    (example,) = re.findall(
        r"^```toml\n(.*?)^```$", (root / "docs" / "ci.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "memcheck.toml").write_text(example, encoding="utf-8")
    settings = read_settings(str(tmp_path / "memcheck.toml"))
    assert settings.fail_above == DEFAULT_FAIL_ABOVE
    assert set(re.findall(r"^([\w-]+) =", example, re.MULTILINE)) == set(READERS)
