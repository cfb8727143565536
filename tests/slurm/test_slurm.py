"""The filters of ``examples/slurm`` and ``memcheck submit`` against Debian's Slurm on loopback. They need root and apt."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing

pytestmark = pytest.mark.slurm
LACKS = missing()
ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("memcheck"))
PLUGINS = {"cli_filter": "CliFilterPlugins", "job_submit": "JobSubmitPlugins"}
LINE = "torchrun --nproc_per_node 2 -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-{size} --per_device_train_batch_size 1 --max_length 1024 --bf16"
JOB = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:a100-40gb:2\n{line}\n"


@pytest.fixture(scope="module", params=PLUGINS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one of the two filters, and a program in place of torchrun that says that it ran."""
    if LACKS:
        pytest.skip(f"Slurm on loopback needs {', '.join(LACKS)}")
    folder = tmp_path_factory.mktemp(request.param)
    script = folder / f"{request.param}.lua"
    script.write_text((ROOT / f"examples/slurm/{request.param}.lua").read_text())
    if request.param == "job_submit":  # slurmctld's environment is its own
        script.write_text(script.read_text().replace('os.getenv("MEMCHECK_PROGRAM") or "memcheck"', f'"{PROGRAM}"'))
    for name, size in (("small", "0.5B"), ("big", "72B")):
        (folder / f"{name}.sh").write_text(JOB.format(line=LINE.format(size=size)))
    (folder / "torchrun").write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    (folder / "torchrun").chmod(0o755)
    started = Cluster(folder, PLUGINS[request.param], script)
    started.environment["PATH"] = f"{folder}:{started.environment['PATH']}"
    started.environment["MEMCHECK_PROGRAM"] = PROGRAM
    yield started
    started.stop()


def submitted(text: str) -> str:
    """The number of the job that sbatch has put into the queue; empty: none."""
    found = re.search(r"Submitted batch job (\d+)", text)
    return found[1] if found is not None else ""


def test_a_job_that_fits_is_queued(cluster: Cluster) -> None:
    """By the real sbatch, and it runs."""
    result = cluster.run("sbatch", "--wait", "small.sh")
    assert result.returncode == 0, result.stderr
    assert "JobState=COMPLETED" in cluster.queued(submitted(result.stdout))
    assert (cluster.folder / "ran").is_file()


def test_a_job_that_does_not_fit_is_refused_with_the_finding(cluster: Cluster) -> None:
    """sbatch fails, says why, and the queue has no such job."""
    before = cluster.run("squeue", "--noheader").stdout
    result = cluster.run("sbatch", "big.sh")
    assert result.returncode != 0
    assert "exceeds-capacity" in result.stderr
    assert not submitted(result.stdout)
    assert cluster.run("squeue", "--noheader").stdout == before


def test_submit_refuses_before_sbatch_is_asked(cluster: Cluster) -> None:
    """The same without a filter: the partition's GPU is Slurm's own answer, and stdout is sbatch's alone."""
    (cluster.folder / "bare.sh").write_text(f"#!/bin/bash\n{LINE.format(size='0.5B')}\n")
    fits = cluster.run(PROGRAM, "submit", "--", "sbatch", "--parsable", "--gres=gpu:2", "bare.sh")
    assert fits.returncode == 0, fits.stderr
    assert re.fullmatch(r"\d+\n", fits.stdout)
    assert "a100-40gb" in fits.stderr
    refused = cluster.run(PROGRAM, "submit", "--", "sbatch", "big.sh")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "nothing was submitted" in refused.stderr


def test_a_wrapped_command_is_checked(cluster: Cluster) -> None:
    """``--wrap``, with GPUs of the command line."""
    result = cluster.run("sbatch", "--gres=gpu:a100-40gb:2", "--wrap", LINE.format(size="72B"))
    assert (result.returncode != 0, "exceeds-capacity" in result.stderr) == (True, True)


def test_a_job_that_cannot_be_read_passes(cluster: Cluster) -> None:
    """By the setting of the example."""
    assert submitted(cluster.run("sbatch", "--wrap", "sleep 0").stdout)


def test_without_memcheck_the_filter_says_so(cluster: Cluster) -> None:
    """And lets the job pass, or not, by its setting."""
    if cluster.run("scontrol", "show", "config").stdout.count("JobSubmitPlugins        = lua"):
        pytest.skip("slurmctld keeps the program that it was started with")
    passes = cluster.run("sbatch", "big.sh", MEMCHECK_PROGRAM="absent")
    assert submitted(passes.stdout)
    assert "memcheck is not installed here (absent): the job is not checked, and passes" in passes.stderr
    refused = cluster.run("sbatch", "big.sh", MEMCHECK_PROGRAM="absent", MEMCHECK_WITHOUT="refuse")
    assert refused.returncode != 0
    assert "the job is not checked, and refused" in refused.stderr
