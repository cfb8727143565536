"""Forward passes of model units, written on the tape."""
