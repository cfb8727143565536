"""The site: its tables are verdicts of the engine, its links lead somewhere, and it asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import memcheck
from docs.site import models_and_gpus, needs
from memcheck.catalog.names import gpu_names
from memcheck.live.link import read_link

MODEL = "llama-3.2-1b"


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str, str], needs.Need | needs.Refused]:
    return models_and_gpus.needs_of(MODEL)


def test_half_as_many_gpus_do_not_pass() -> None:
    """A cell is the smallest number: it passes, and half of it does not."""
    need = needs.smallest("llama-3.1-8b", "a100-40gb", "Full fine-tune")
    assert isinstance(need, needs.Need)
    assert need.gpus > 1
    fewer = needs.plan_of("llama-3.1-8b", "a100-40gb", "Full fine-tune", need.gpus // 2)
    assert memcheck.check(need.plan).plans[0].status == "passed"
    assert memcheck.check(fewer).plans[0].status == "failed"


@pytest.mark.slow
def test_a_model_too_large_says_what_it_needs() -> None:
    """A dash has its reason: the least memory, and with how many GPUs."""
    need = needs.smallest("mixtral-8x7b", "rtx-4090", "Full fine-tune")
    assert isinstance(need, needs.Refused)
    assert re.fullmatch(r"at least [\d.]+ GiB per GPU, with \d+ GPUs", need.reason)
    assert needs.cell(need) == "–"


def test_each_cell_opens_its_plan(table: dict[tuple[str, str, str], needs.Need | needs.Refused]) -> None:
    """The link of a cell holds the plan that was checked."""
    page = models_and_gpus.model_page(MODEL, table)
    links = re.findall(r"#p=1\.[\w-]+", page)
    plans = [need.plan for need in table.values() if isinstance(need, needs.Need)]
    read = [yaml.safe_load(read_link(link).plan) for link in links]
    assert len(read) == len(plans)
    assert all(plan in plans for plan in read)


def test_every_gpu_has_a_page(table: dict[tuple[str, str, str], needs.Need | needs.Refused]) -> None:
    """A page holds the memory and the source of each GPU of the catalog."""
    for name in gpu_names():
        page = models_and_gpus.gpu_page(name, table)
        assert f"{needs.gib(name):.2f} GiB" in page
        assert "Source: " in page


@pytest.mark.slow
def test_the_site_is_built_without_a_dead_link(root: Path, tmp_path: Path) -> None:
    """A strict build with one model passes; its pages load nothing from another host; llms.txt names pages that are there."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "docs.site.build", "--out", tmp_path / "site", "--models", MODEL]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = re.findall(r"\]\(([^)]+)\)", (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8"))
    assert [link for link in listed if not (tmp_path / "site" / link / "index.html").is_file()] == []
    for page in ("index.html", f"models/{MODEL}/index.html", "docs/rules/index.html"):
        html = (tmp_path / "site" / page).read_text(encoding="utf-8")
        assert re.findall(r"""(?:src|<link[^>]*rel="stylesheet"[^>]*href)=["'](?:https?:)?//""", html) == []
