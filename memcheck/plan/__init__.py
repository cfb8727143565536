"""A plan as text with places and as a typed record, or what is wrong with it.

Imports nothing but findings, errors and the edge.
"""
