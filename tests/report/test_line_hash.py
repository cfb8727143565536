"""GitHub's hash of a line. The expected values were computed by the upload action itself (codeql-action v4)."""

from __future__ import annotations

import pytest

from memcheck.report.sarif import line_hashes

PLAN = (
    "memcheck: 1\nmodel: llama-3.1-8b\nhardware:\n  gpu: a100-40gb\n  gpus_per_node: 8\n"
    "training:\n  micro_batch_size: 4\n  sequence_length: 8192\n"
)
END = "c129715d7a2bc9a3:1"
"""The empty line behind the last line end."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [END]),
        (
            PLAN,
            [
                "fd08dc2a78d2791c:1",
                "f752535f4966e3fe:1",
                "4cd9d87bafd3cb12:1",
                "2ad3d04e670b8d04:1",
                "fb7526cc10907b68:1",
                "82e40a270b956136:1",
                "790c36aa62e493e2:1",
                "be403b77e20fb0f1:1",
                END,
            ],
        ),
        (
            " a\nb\n  \t\tc\n d",
            ["271789c17abda88f:1", "54703d4cd895b18:1", "180aee12dab6264:1", "a23a3dc5e078b07b:1"],
        ),
        (
            "memcheck: 1\nmodel: x\r\n\n\r  name: y\r\n",
            [
                "47a475a20a58a9cc:1",
                "7e8b978faafa175e:1",
                "53abd81f9735ed6d:1",
                "1fb6168adbaabe57:1",
                "9d311c0bc08cf029:1",
                END,
            ],
        ),
        (
            "  sequence_length: 8192\n" * 10,
            [f"cbfbf612013ae900:{number}" for number in range(1, 7)]
            + ["e4b38a531667ba8b:1", "1f1aef79380d3645:1", "14f04ade272ef87:1", "be403b77e20fb0f1:1", END],
        ),
        ("name: 𝕏-café 🚀\nmodel: x\n", ["f5daad976b398de2:1", "2bca30fa132d054:1", END]),
        ("\ufeffmemcheck: 1\nmodel: x\n", ["881ac309fe600895:1", "2bca30fa132d054:1", END]),
        ("name: a\u2028b\u0085c\nmodel: x\n", ["d57334e64d4ba96c:1", "2bca30fa132d054:1", END]),
        (
            "a  \t\n  b\t\n\n\n",
            ["72b3b2757593f0d2:1", "5b5cae4d3171c963:1", "5b5d4caf73a13177:1", "3c5bef55b72b93c9:1", END],
        ),
        (
            "x" * 250 + "\n" + "y" * 99 + "\nz\n",
            ["52b56201ffb58620:1", "cadd4b5b9d92c4ad:1", "95de0951c928fa27:1", END],
        ),
    ],
    ids=["empty", "plan", "unended", "line-ends", "repeated", "astral", "mark", "separators", "blanks", "long"],
)
def test_hashes_are_github_s(text: str, expected: list[str]) -> None:
    """Blanks, every kind of line end, repeated and long lines, characters of two code units, a byte order mark."""
    assert line_hashes(text) == expected


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_do_not_matter(end: str) -> None:
    """The same text saved on another system keeps its hashes."""
    assert line_hashes(PLAN.replace("\n", end)) == line_hashes(PLAN)


def test_a_line_keeps_its_hash_when_it_moves() -> None:
    """What is above a line plays no part; what follows within a hundred characters does."""
    moved = line_hashes("# one more line\n" + PLAN)
    assert moved[1:] == line_hashes(PLAN)
    assert line_hashes(PLAN + "compile: true\n")[7] != line_hashes(PLAN)[7]
