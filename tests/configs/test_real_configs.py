"""The readers over configs as people commit them: below the folders of ``MEMCHECK_CONFIGS``, where that is set."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from benchmarks.readers import files, outcome

FOLDERS = [folder for folder in os.environ.get("MEMCHECK_CONFIGS", "").split(os.pathsep) if os.path.isdir(folder)]


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
def test_real_configs_become_plans() -> None:
    """No config breaks a reader; at least four of five become plans, and each other one has its reasons."""
    found = [each for path in files(FOLDERS) if (each := outcome(path)) is not None]
    assert found
    assert all(each.reasons for each in found if each.kind != "fully")
    kinds = Counter(each.kind for each in found)
    assert kinds["refused"] <= len(found) / 5, [each for each in found if each.kind == "refused"]
