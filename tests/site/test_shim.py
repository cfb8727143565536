"""The page's own rpds explains broken plans as the compiled one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys, tempfile
import rpds
from benchmarks.page_plans import Case, answer
from benchmarks.hostile_draw import draw_input

os.environ.update(MEMCHECK_NO_CACHE="1", NO_COLOR="1")
found = []
for index in range(2_000):
    given = draw_input(1, index)
    if given.kind == "schema" and not given.links and not given.pipes:
        found.append(answer(Case("", dict(given.files), ("check", *given.arguments))))
    if len(found) == 100:
        break
print(json.dumps({"file": rpds.__file__, "answers": found}))
"""


def answers(root: Path, *folders: Path) -> dict[str, object]:
    """What the command says of 100 plans whose values do not fit the schema, with modules from some folders first."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*folders, root)))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, env=environ, capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_explanations_are_the_same_with_the_shim(root: Path) -> None:
    """jsonschema's errors, and so the findings, do not depend on which of the two keeps its registries."""
    shim = root / "site" / "build" / "shim"
    ours, compiled = answers(root, shim), answers(root)
    assert Path(str(ours["file"])).parent == shim
    assert ours["file"] != compiled["file"]
    assert ours["answers"] == compiled["answers"]
    broken = [each for each in compiled["answers"] if each["code"] == 1]
    assert len(broken) > 50
