"""Figures of runs that somebody had, from logs and snapshots."""
