"""What changed since: earlier plans, two states compared, baselines, and mended files.

Imports any room but verification and commands; its folders are loaded only where they are used.
"""
