"""The readers over configs as people commit them: below the folders of ``MEMCHECK_CONFIGS``, where that is set."""

from __future__ import annotations

import os

import pytest

from benchmarks.config_corpus import CRASHED, FAILED, corpora, share, verdict

FOLDERS = [folder for folder in os.environ.get("MEMCHECK_CONFIGS", "").split(os.pathsep) if os.path.isdir(folder)]
LEAST_SHARE = 0.9


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="MEMCHECK_CONFIGS names no folder of real configs")
def test_real_configs_are_estimated() -> None:
    """No config breaks a reader; of those whose job a plan can say nine of ten are estimated, and each other one has
    its reasons.
    """
    found = [verdict(path) for paths in corpora(FOLDERS).values() for path in paths]
    failed = [each for each in found if each.kind == FAILED]
    part = share(found)
    assert part is not None
    assert part >= LEAST_SHARE, failed
    assert all(each.reasons for each in failed)
    assert not [each for each in found if each.kind == CRASHED]
