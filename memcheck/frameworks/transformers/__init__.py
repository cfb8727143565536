"""The forward passes of transformers' classes, block by block, and the Trainer's defaults."""
