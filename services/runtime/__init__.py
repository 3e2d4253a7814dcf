"""The runtime service: it runs the turns of threads, from an input to the end of the turn."""
