"""The ingest service is the HTTP API: it takes commands, answers reads, and streams threads to clients."""
