"""The `threadlog` command: everything that operators and developers do from a terminal."""
