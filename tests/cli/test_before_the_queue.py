"""The commands of ``docs/before-the-queue.md`` for SkyPilot, dstack and Kueue, with programs in their place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "before-the-queue.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^memcheck check .* && .*$", PAGE, re.MULTILINE)
LINE = (
    "torchrun --nproc_per_node 2 -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-{size} "
    "--per_device_train_batch_size 1 --max_length 1024 --bf16"
)
MANIFESTS = {
    "task.yaml": "resources:\n  accelerators: A100-80GB:2\nrun: |\n  {line}\n",
    "train.dstack.yml": "type: task\nname: train\ncommands:\n  - {line}\nresources:\n  gpu: 2\n",
    "job.yaml": (
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: train\n  labels: {{kueue.x-k8s.io/queue-name: gpus}}\n"
        "spec:\n  suspend: true\n  template:\n    spec:\n      containers:\n        - name: train\n          image: a/b\n"
        "          command: [bash, -c, '{line}']\n          resources: {{limits: {{nvidia.com/gpu: 2}}}}\n"
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the page's commands are those of a shell")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.split(" && ")[1].split(" ", 1)[0])
def test_the_manifest_is_checked_before_it_is_applied(command: str, tmp_path: Path) -> None:
    """A job that fits is handed on, and one that does not is not."""
    _, _, queue = command.partition(" && ")
    programs = {"memcheck": f'exec {sys.executable} -m memcheck "$@"', queue.split(" ", 1)[0]: 'echo "$@" >> called'}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    manifest = next(name for name in MANIFESTS if name in command)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ends = []
    for size in ("0.5B", "72B"):
        (tmp_path / manifest).write_text(MANIFESTS[manifest].format(line=LINE.format(size=size)))
        line = ["sh", "-c", command]
        found = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        ends.append((found.returncode, "exceeds-capacity" in found.stdout))
    assert ends == [(0, False), (1, True)]
    assert (tmp_path / "called").read_text() == f"{queue.split(' ', 1)[1]}\n"


def test_the_page_names_all_three() -> None:
    """A command for each of them."""
    assert [each.split(" && ")[1].split(" ", 1)[0] for each in COMMANDS] == ["sky", "dstack", "kubectl"]
