"""Records become committed rows, dead letters and published effects: what the running projector does with a batch."""
