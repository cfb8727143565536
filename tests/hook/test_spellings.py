"""What fails when it is named fails in the hook, too, however a plan's first key is spelled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SPELLINGS: dict[str, bytes] = {
    "anchor": b"memcheck: &v 1\nmodel: none\n",
    "alias": b"model: &k memcheck\n*k : 1\n",
    "block": b"memcheck: |\n  1\nmodel: none\n",
    "braces": b"--- &top\n{memcheck: !!int 1, model: none}\n",
    "escape": b'"mem\\u0063heck": 1\nmodel: none\n',
    "indented": b"  memcheck: 1\n  model: none\n",
    "line-separator": "model: none\u2028memcheck: 1\n".encode(),
    "mark": b"\xef\xbb\xbf  memcheck: 1\n",
    "merge": b"<<: {memcheck: 1}\nmodel: none\n",
    "question": b"? memcheck\n: 1\n",
    "second-document": b"model: none\n---\n  memcheck: 1\n",
    "tag": b"memcheck: !!int 1\nmodel: none\n",
    "tagged-key": b"!!str memcheck: 1\nmodel: none\n",
    "utf-16": "memcheck: 1\nmodel: none\n".encode("utf-16"),
    "utf-32": "memcheck: 1\nmodel: none\n".encode("utf-32"),
    "large": b"a: 1\n" * 300_000 + b"  memcheck: 1\n",
}
OTHER: dict[str, bytes] = {
    "ci": b"memcheck:\n  stage: test\n",
    "comment": b"# memcheck\na: 1\n",
    "mention": b"a: memcheck\n",
    "large-other": b"a: 1\n" * 300_000,
}


@pytest.mark.slow
def test_every_spelling_is_seen(root: Path, tmp_path: Path) -> None:
    """The hook reports exactly the files that hold a plan, or that are too large to tell."""
    for name, data in {**SPELLINGS, **OTHER}.items():
        (tmp_path / f"{name}.yaml").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", "hook", "--format=json", *sorted(os.listdir(tmp_path))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    plans = json.loads(done.stdout)["plans"]
    assert {Path(plan["path"]).stem for plan in plans} == set(SPELLINGS)
    assert {plan["status"] for plan in plans if plan["document"] == 0} == {"error"}
