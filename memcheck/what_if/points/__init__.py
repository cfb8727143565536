"""What a plan comes to with some values replaced: one point of a comparison or of a grid."""
