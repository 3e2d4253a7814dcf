"""The formats of the topics that are derived from the log or run beside it: effects, windows and progress."""
