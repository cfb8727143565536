"""Plans that tests write."""

from __future__ import annotations

from pathlib import Path

GOOD = """\
memcheck: 1
name: {name}
model: llama-3.1-8b
hardware:
  gpu: h100-80gb
  gpus_per_node: 8
parallelism:
  zero_stage: 3
training:
  framework: pytorch
  micro_batch_size: 1
  sequence_length: 2048
  activation_checkpointing: full
"""


def write(folder: Path, name: str = "good", **changes: str) -> Path:
    """A plan that passes, unless ``changes`` replaces some of its text."""
    text = GOOD.format(name=name)
    for old, new in changes.items():
        assert f"{old}: " in text
        text = "".join(
            f"{line.partition(old)[0]}{old}: {new}\n" if line.strip().startswith(f"{old}: ") else line
            for line in text.splitlines(keepends=True)
        )
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def write_over(folder: Path, name: str = "over") -> Path:
    """A plan that needs several times the GPU."""
    return write(folder, name, gpu="rtx-4090", zero_stage="0", micro_batch_size="4")


def write_broken(folder: Path, name: str = "broken") -> Path:
    """A plan with a misspelt key."""
    path = write(folder, name)
    path.write_text(path.read_text().replace("micro_batch_size", "micro_batchsize"), encoding="utf-8")
    return path
