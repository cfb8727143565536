"""Files that wrap a launch, and files of a team's own, in any size."""

from __future__ import annotations

from tests.hostile.grown import GPU, LAUNCH, Kind

ASKING = (
    "import argparse\nfrom trl import SFTConfig, SFTTrainer\np = argparse.ArgumentParser()\n"
    "p.add_argument('--model', default='gpt2')\no = p.parse_args()\nSFTTrainer(o.model, SFTConfig()).train()\n"
)
"""A script that leaves its model to its command line."""
LINE = LAUNCH.strip().split("\n")[-1]


def _checked(name: str, *more: str) -> list[str]:
    return ["check", "--no-cache", "--jobs", "1", *more, *GPU, name]


WRAPPERS: dict[str, Kind] = {
    "make: variables": (
        1_000,
        lambda n, _: {
            "Makefile": "".join(f"V{i} := $(V{i - 1}) x\n" for i in range(1, n))
            + f"train:\n\ttorchrun a.py $(V{n - 1})\n"
        },
        _checked("Makefile"),
    ),
    "make: commands": (
        1_000,
        lambda n, _: {"Makefile": "train:\n" + "".join(f"\tpython train.py --lr {i}\n" for i in range(n))},
        _checked("Makefile"),
    ),
    "docker: instructions": (
        1_000,
        lambda n, _: {
            "Dockerfile": "FROM a/b\n"
            + "".join(f"ENV V{i}=$V{i - 1}\nRUN python train.py $V{i}\n" for i in range(1, n))
        },
        _checked("Dockerfile"),
    ),
    "kubernetes: containers": (
        100,
        lambda n, _: {
            "job.yaml": "apiVersion: v1\nkind: Job\nspec:\n  containers:\n"
            + "".join(
                f"  - {{command: [python, train.py, --lr, '{i}'], env: [{{name: A, value: b}}]}}\n" for i in range(n)
            )
        },
        _checked("job.yaml"),
    ),
    "kubernetes: groups in groups": (
        10,
        lambda n, _: {
            "job.yaml": "apiVersion: v1\nkind: Job\nspec: " + "{tasks: [{a: 1}, " * n + "{b: 2}" + "]}" * n + "\n"
        },
        _checked("job.yaml"),
    ),
    "slurm: parts": (
        1_000,
        lambda n, _: {
            "job.slurm": "#!/bin/bash\n" + "#SBATCH hetjob\n#SBATCH --gres=gpu:8\n" * n + "srun python train.py\n"
        },
        _checked("job.slurm"),
    ),
    **{
        f"python: launch lines beside it, {name}": (
            200,
            lambda n, _, line=line, file=file: {  # type: ignore[misc]
                "train.py": ASKING,
                file: "".join(f"{line} --model a/m{i} --n {i}\n" for i in range(n)),
            },
            _checked("train.py"),
        )
        for name, file, line in (
            ("of a page", "README.md", "python train.py"),
            ("of another script", "README.md", "python other.py"),
            ("of a shell script", "run.sh", "python train.py"),
            ("that goes on", "README.md", "python other.py \\\n"),
            ("of a Makefile", "Makefile", "\tpython train.py $(A)"),
        )
    },
    "own: keys": (
        1_000,
        lambda n, _: {
            "own.yaml": "model_name: gpt2\nbatch_size: 1\n" + "".join(f"k{i}: {{batch_size: {i}}}\n" for i in range(n))
        },
        _checked("own.yaml"),
    ),
    "own: keys taken": (
        1_000,
        lambda n, _: {
            "own.yaml": "model_name: gpt2\nbatch_size: 1\n" + "".join(f"k{i}: {{batch_size: {i}}}\n" for i in range(n))
        },
        _checked("own.yaml", "--from", "keys"),
    ),
}
