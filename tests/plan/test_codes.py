from __future__ import annotations

from memcheck.plan import finding as module
from memcheck.plan.finding import BOOLEAN_TRAP, SEVERITIES, Code, Location, Span

CODES = [each for each in vars(module).values() if isinstance(each, Code)]


def test_codes_are_a_family_in_order():
    """Codes of files are MEM0xx, of framework configs MEM5xx, of a policy MEM6xx; each stands once, in order, with its own name."""
    codes = [each.code for each in CODES]
    assert codes == sorted(set(codes))
    assert all(code.startswith(("MEM0", "MEM5", "MEM6")) for code in codes)
    assert len({each.name for each in CODES}) == len(codes)
    assert all(each.name == each.name.lower() and " " not in each.name for each in CODES)
    assert all(each.severity in SEVERITIES and each.summary.endswith(".") for each in CODES)


def test_a_code_makes_findings():
    """A finding takes code, name and severity from its code."""
    at = Location("x.yaml", Span(1, 2, 1, 3))
    finding = BOOLEAN_TRAP.at(at, "message", help="help", pointer="/a")
    assert finding[:7] == ("MEM005", "yaml-boolean-trap", "warning", "message", at, "/a", "help")
    assert BOOLEAN_TRAP.at(at, "message", severity="error").severity == "error"
