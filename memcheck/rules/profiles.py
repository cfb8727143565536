"""The profiles that rules belong to: a word of the configuration and of ``--profile``."""

GATE, REVIEW, RESEARCH = "gate", "review", "research"
PROFILES = (GATE, REVIEW, RESEARCH)
"""In the order in which they grow: each has the rules of those before it."""
