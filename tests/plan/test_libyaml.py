"""PyYAML is entered without being run; whoever asks it for more finds it whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memcheck.catalog.names import DATA, read_record

SCRIPT = """
import sys
from memcheck.edge.libyaml import yaml
from yaml._yaml import CParser
assert not {"re", "yaml.reader", "yaml.constructor"} & sys.modules.keys(), "run too soon"
parser = CParser("a: [1")
found = yaml.YAMLError
try:
    while parser.get_event():
        pass
except found as error:
    import yaml as whole
    assert type(error) is whole.parser.ParserError, type(error)
    print(error.problem)
try:
    CParser("a: \\x00").get_event()
    CParser("a: \\x00").get_token()
except found as error:
    pass
assert whole is yaml and whole.__with_libyaml__
assert whole.error.YAMLError is found and whole.events.ScalarEvent is yaml.ScalarEvent
print(whole.safe_load("{a: [1.5, 2001-01-01]}"), whole.load("x", Loader=whole.CSafeLoader), whole.safe_dump([1]))
"""


def test_what_is_not_run_yet_is_whole_when_asked(root: Path) -> None:
    """Errors are PyYAML's own classes, and every other name of the package works, although only the parser was asked."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "did not find expected ',' or ']'",
        "{'a': [1.5, datetime.date(2001, 1, 1)]} x - 1",
        "",
    ]


@pytest.mark.parametrize("kind", ["gpus", "models"])
def test_records_are_read_as_yaml_reads_them(kind: str) -> None:
    """The short way to read a record of the catalog finds the values that PyYAML finds."""
    for name in sorted(os.listdir(os.path.join(DATA, kind))):
        if name.endswith(".yaml"):
            path = Path(DATA) / kind / name
            assert repr(read_record(str(path))) == repr(yaml.load(path.read_bytes(), yaml.CSafeLoader)), name
