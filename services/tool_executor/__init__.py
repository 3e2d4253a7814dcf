"""The service that sees dispatched tool calls, claims them, runs them and records how they ended."""
