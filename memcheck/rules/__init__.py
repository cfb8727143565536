"""Rules, one module each, the profiles that they belong to, who asks them, and the records of what they found.

Imports the engine's answers and what lies to the left of it; neither reports nor commands.
"""

GATE, REVIEW, RESEARCH = "gate", "review", "research"
PROFILES = (GATE, REVIEW, RESEARCH)
"""Words of the configuration, in the order in which they grow: each profile has the rules of those before it."""
