"""``memcheck submit`` with a program in place of ``sbatch``: what is checked, what is run, and what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.cli.submit import exact, parsed, partition_gpu, submission_of
from memcheck.errors import UsageError

LINE = "torchrun --nproc_per_node {gpus} -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-{size} --per_device_train_batch_size 1 --max_length 1024 --bf16"
SMALL, BIG = LINE.format(gpus=2, size="0.5B"), LINE.format(gpus=2, size="72B")
SINFO = (
    "#!/bin/sh\nprintf 'gpu*|gpu:a100-40gb:8\\nbig|gpu:h200:8(S:0-1)\\nmixed|gpu:h200:4,gpu:l4:4\\nodd|gpu:a100:8\\n'\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, and programs that say how they were called."""
    for name, text in (("sbatch", '#!/bin/sh\necho "$@" > called\necho 7\nexit 5\n'), ("sinfo", SINFO)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "small.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:h100-80gb:2\n{SMALL}\n")
    (tmp_path / "big.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:h100-80gb:2\n{BIG}\n")
    (tmp_path / "bare.sh").write_text(f"#!/bin/bash\n{SMALL}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which becomes the submitting program."""
    line = [sys.executable, "-m", "memcheck", "submit", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_job_that_fits_is_handed_on(here: Path) -> None:
    """Every word as it was given; the exit code and stdout are those of the program."""
    result = submit("--", "sbatch", "--parsable", "small.sh", "--lr", "1")
    assert (result.returncode, result.stdout) == (5, "7\n")
    assert (here / "called").read_text() == "--parsable small.sh --lr 1\n"
    assert "checked 1 plan: 1 passed" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["big.sh"], ["--gres=gpu:h100-80gb:2", "--wrap", BIG], ["-N", "1", "--", "big.sh"]])
def test_a_job_that_does_not_fit_is_not(here: Path, words: list[str]) -> None:
    """Exit code 1, the finding on stderr, and nothing on stdout."""
    result = submit("--", "sbatch", *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert "exceeds-capacity" in result.stderr
    assert "nothing was submitted" in result.stderr
    assert not (here / "called").exists()


def test_check_only_submits_nothing(here: Path) -> None:
    """Whatever is found."""
    assert submit("--check-only", "--", "sbatch", "small.sh").returncode == 0
    assert not (here / "called").exists()


@pytest.mark.slow
def test_a_job_that_cannot_be_read_is_refused_unless_the_user_says_so(here: Path) -> None:
    """``--unread submit`` hands it on, and says that it was not estimated."""
    (here / "own.sh").write_text("#!/bin/bash\n./simulate --steps 3\n")
    assert submit("--", "sbatch", "own.sh").returncode == 1
    assert not (here / "called").exists()
    result = submit("--unread", "submit", "--", "sbatch", "own.sh")
    assert (result.returncode, (here / "called").is_file()) == (5, True)
    assert "the job was not estimated" in result.stderr


@pytest.mark.slow
def test_the_partition_says_the_gpu(here: Path) -> None:
    """Slurm's own answer, where neither line nor script names one; a stated GPU goes before it."""
    assert "a100-40gb" in submit("--check-only", "--", "sbatch", "bare.sh").stderr
    assert "h200" in submit("--check-only", "--", "sbatch", "-p", "big", "bare.sh").stderr
    assert "l4" in submit("--check-only", "--gpu", "l4", "--", "sbatch", "bare.sh").stderr
    assert [partition_gpu(name) for name in ("", "big", "mixed", "odd", "none")] == ["a100-40gb", "h200", "", "", ""]
    assert (exact("a100"), exact("h200")) == ("", "h200")


@pytest.mark.parametrize(
    ("words", "said", "script"),
    [
        ("-N 2 -p gpu job.sh -N 9", {"nodes": "2", "partition": "gpu"}, "job.sh"),
        ("-N2 --gres gpu:4 -J name job.sh", {"nodes": "2", "gres": "gpu:4"}, "job.sh"),
        ("--hold --exclusive -Q --mem=4G job.sh x", {}, "job.sh"),
        ("--gpus=h100:8 --nodes=2-4 --output out.log -- -odd.sh", {"gpus": "h100:8", "nodes": "2-4"}, "-odd.sh"),
        ("--parsable", {}, ""),
    ],
)
def test_options_of_sbatch_are_told_from_its_script(words: str, said: dict[str, str], script: str) -> None:
    """Which options take a value decides which word is the script."""
    assert parsed(words.split()) == (said, script)


def test_the_command_line_goes_before_the_script(here: Path) -> None:
    """``#SBATCH`` lines of the same option are blanked, and every line keeps its number."""
    (here / "two.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH -G 8\necho $SLURM_NNODES\n")
    job = submission_of(["sbatch", "--nodes=4", "--gres=gpu:h200:8", "two.sh"])
    assert job.hardware == {"nodes": 4, "gpus_per_node": 8, "gpu": "h200"}
    assert job.defines == {"SLURM_NNODES": "4"}
    assert job.file.data.decode().split("\n") == ["#!/bin/bash", "#", "#", "echo $SLURM_NNODES", ""]


def test_other_platforms_name_their_manifest(here: Path) -> None:
    """The first file of the line that exists; a launcher's own line is checked as it stands."""
    (here / "task.yaml").write_text(f"resources: {{accelerators: 'H100:2'}}\nrun: {SMALL}\n")
    assert submission_of(["sky", "launch", "-c", "x", "task.yaml"]).file.path == "task.yaml"
    assert submission_of(["srun", *SMALL.split()]).file.path == "<command>"
    result = submit("--check-only", "--", "sky", "launch", "task.yaml")
    assert (result.returncode, "2 x h100-80gb" in result.stderr) == (0, True)


@pytest.mark.parametrize("words", [["sbatch"], ["sbatch", "absent.sh"], ["sbatch", "-N", "2"]])
def test_a_line_without_a_job_is_a_usage_error(here: Path, words: list[str]) -> None:
    """Exit code 2, and nothing is run."""
    with pytest.raises(UsageError):
        submission_of(words)
    assert submit("--", *words).returncode == 2
    assert not (here / "called").exists()
