"""Which terminals understand hyperlinks (OSC 8). There is no way to ask one; others would show rubbish."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.edge.screen import whole_number

PROGRAMS = ("ghostty", "iTerm.app", "vscode", "WezTerm")
"""Values of ``TERM_PROGRAM`` of terminals that show hyperlinks."""
TERMS = ("alacritty", "foot", "xterm-ghostty", "xterm-kitty")
"""Beginnings of ``TERM`` of terminals that show hyperlinks."""
MARKS = ("KITTY_WINDOW_ID", "KONSOLE_VERSION", "WT_SESSION")
"""Variables that only such terminals set."""
MULTIPLEXERS = ("TMUX", "STY")
"""tmux drops hyperlinks before 3.4, and screen always."""
FIRST_VTE = 5000
"""GNOME Terminal and its relatives: hyperlinks work since VTE 0.50."""


def understood(environment: Mapping[str, str]) -> bool:
    """Whether the terminal that this environment describes shows hyperlinks."""
    if environment.get("CI") or environment.get("TERM") == "dumb":
        return False
    if any(environment.get(name) for name in MULTIPLEXERS):
        return False
    vte = environment.get("VTE_VERSION", "")
    return (
        environment.get("TERM_PROGRAM") in PROGRAMS
        or environment.get("TERM", "").startswith(TERMS)
        or any(environment.get(name) for name in MARKS)
        or (whole_number(vte) or 0) >= FIRST_VTE
    )
