"""Building blocks that families share: matrices, attention, feed-forward networks, the stack of layers."""
