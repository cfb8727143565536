"""Profiles: sets of rules, from what may stop a merge to all that can be said."""

from __future__ import annotations

GATE, REVIEW, RESEARCH = "gate", "review", "research"
PROFILES = (GATE, REVIEW, RESEARCH)
"""In the order in which they grow: each has the rules of those before it."""
