"""Pure functions that turn a request into the events of a command, or into the problem that refuses it."""
