"""Model families: from a configuration in Hugging Face's key names to an architecture, and what odd ones run."""
