"""A plan with every value concrete and every default written down; the types of recipes and profiles.

Imports plans, catalog and models; profiles of frameworks are handed to it.
"""
