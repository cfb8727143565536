"""A Slurm of one node on loopback, with Debian's own programs: munged, slurmctld and slurmd, each in its own folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel")
PATIENCE_S = 20
GPUS = 8
CONF = """\
ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
GresTypes=gpu
{plugin}=lua
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:a100-40gb:8
PartitionName=gpu Nodes=ALL Default=YES State=UP
"""


def missing() -> list[str]:
    """What a cluster needs and this machine lacks."""
    lacks = [each for each in PROGRAMS if shutil.which(each, path=_path()) is None]
    return [*(["root"] if os.geteuid() else []), *lacks]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Cluster:
    """One cluster that is up until it is stopped."""

    def __init__(self, folder: Path, plugin: str, script: Path) -> None:
        """Start it. ``plugin``: the key of slurm.conf for Lua; ``script``: the plugin's file."""
        self.folder = folder
        (folder / "etc").mkdir()
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        host = socket.gethostname().partition(".")[0]
        conf = CONF.format(host=host, folder=folder, ports=(_port(), _port()), plugin=plugin)
        (folder / "etc/slurm.conf").write_text(conf)
        for number in range(GPUS):  # slurmd counts files, and no job opens them
            (folder / f"gpu{number}").touch()
        (folder / "etc/gres.conf").write_text(f"Name=gpu Type=a100-40gb File={folder}/gpu[0-{GPUS - 1}]\n")
        shutil.copy(script, folder / "etc")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "etc/slurm.conf")}
        own = [f"--{name}={folder}/munge.{end}" for name, end in MUNGE.items()]
        try:
            self._up(own)
        except RuntimeError:
            self.stop()
            raise

    def _up(self, own: list[str]) -> None:
        """Start the three programs, and wait for the node."""
        self._start("munged", "--force", *own)
        self._start("slurmctld")
        self._start("slurmd")
        until = time.monotonic() + PATIENCE_S
        while "idle" not in self.run("sinfo", "--noheader", "--format=%t").stdout:
            if time.monotonic() > until:
                logs = "".join((self.folder / f"{each}.log").read_text()[-2000:] for each in ("slurmctld", "slurmd"))
                raise RuntimeError(f"the node does not come up: {logs}")
            time.sleep(0.2)

    def _start(self, *line: str) -> None:
        started = subprocess.run(line, env=self.environment, capture_output=True, text=True, check=False)
        if started.returncode:
            raise RuntimeError(f"{line[0]}: {started.stderr}{started.stdout}")

    def run(self, *line: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command of the cluster's user. ``more``: variables of its environment."""
        return subprocess.run(
            line, env={**self.environment, **more}, capture_output=True, text=True, check=False, cwd=self.folder
        )

    def queued(self, number: str) -> str:
        """The state of a job, whether it waits, runs or has ended; empty: there is none of this number."""
        return self.run("scontrol", "show", "job", number).stdout

    def stop(self) -> None:
        """End the programs that were started, by their own ids."""
        for name in ("slurmd", "slurmctld", "munge"):
            file = self.folder / f"{name}.pid"
            if file.is_file():
                os.kill(int(file.read_text()), signal.SIGTERM)


MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
