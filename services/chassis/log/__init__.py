"""The log as the services see it: its port, the batching of appends, and how far a reader is behind."""
