"""A new generation is filled from the log beside the live one, compared with it, and takes its place."""
