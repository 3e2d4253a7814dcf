"""The frame that all services stand on: log, database, artifacts, lifecycle and telemetry."""
