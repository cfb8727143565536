"""Plans from and to the configs of training frameworks: per format a table of keys, a reader and a writer.

Imports plans, jobs, models, profiles and estimates; no rule.
"""
