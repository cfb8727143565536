"""What a verification has to say, for people and programs."""
