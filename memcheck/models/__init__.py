"""What a model is: blocks, tensors, families, read from configurations.

Imports plans' text and the catalog; no word about any framework.
"""
