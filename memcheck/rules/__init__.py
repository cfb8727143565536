"""Rules, one module each, and who asks them.

Imports the engine's answers and what lies to the left of it; neither reports nor commands.
"""
