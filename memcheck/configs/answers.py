"""Values stated in addition to a config, on a command line or in memcheck's configuration, and reading with them.

`check`, `estimate` and `import` read every config through :func:`read_beside`, and a plan its ``source`` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memcheck.configs.arguments import NO_DEFINES
from memcheck.configs.config_file import NO_IMAGES
from memcheck.configs.formats import Format
from memcheck.configs.readings import Asked, reading_of
from memcheck.configs.served import reading_for
from memcheck.configs.types import ReadConfig
from memcheck.record import Record

LENGTH = "training.sequence_length"
FLAGS = {
    "model": "model",
    "gpu": "hardware.gpu",
    "gpus_per_node": "hardware.gpus_per_node",
    "nodes": "hardware.nodes",
    "host_memory": "hardware.host_memory_gib",
    "micro_batch_size": "training.micro_batch_size",
    "sequence_length": LENGTH,
    "framework": "training.framework",
}
"""Options that state a key of the plan: the option's name with underscores, and the key."""
ASKS = (
    ("model", "which model it trains", "name one of the catalog: --model llama-3.1-8b (`memcheck list models`)"),
    ("hardware.gpu", "which GPU it runs on", "name one of the catalog: --gpu h100-80gb (`memcheck list gpus`)"),
    (
        "hardware.gpus_per_node",
        "how many GPUs run it",
        "state them: --gpus-per-node 8, or --gpus-per-node 8 --nodes 2 for two nodes",
    ),
    (LENGTH, "how long a sequence is", "state the tokens of the longest row: --sequence-length 8192"),
    ("training.micro_batch_size", "how many sequences a GPU takes at once", "state them: --micro-batch-size 1"),
)
"""What a plan cannot do without: its key, what it is, how to state it."""


class Beside(Record):
    """What a reader is told that no key of a plan says."""

    version: str = ""
    """Releases by which defaults are chosen, of a trainer and of its framework; empty for the newest."""
    defines: Mapping[str, str] = NO_DEFINES
    """Variables that a script leaves to its caller."""
    images: Mapping[str, int] = NO_IMAGES
    """The pictures of a sample, by key of ``training.images``."""
    changed: frozenset[str] = frozenset()
    """Keys of the plan that go before what the config says: ``--set`` of a command that judges."""


NOTHING_BESIDE = Beside()


def read_beside(
    kind: Format,
    path: str,
    data: bytes,
    stated: Mapping[str, object],
    beside: Beside,
    read: Callable[[str], bytes],
    *,
    inside: str,
    serving: bool = False,
) -> ReadConfig:
    """A config in the plan's words. ``stated``: values by dotted key of the plan, which the reader counts with.

    ``read``, ``inside``: how files that the config names are read, and the folder within which they have to be.

    Raises:
        ConfigError: the config cannot be used.
        OSError: a file that it names cannot be read.
    """
    per_node, nodes = stated.get("hardware.gpus_per_node"), stated.get("hardware.nodes", 1)
    asked = Asked(
        path=path,
        inside=inside,
        version=beside.version,
        images=beside.images,
        defines=beside.defines,
        method=str(stated.get("training.method", "")),
        gpus_per_node=per_node if isinstance(per_node, int) else None,
        world=per_node * nodes if isinstance(per_node, int) and isinstance(nodes, int) else None,
    )
    return reading_for(reading_of(kind, data, asked, read), serving=serving)
