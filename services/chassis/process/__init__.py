"""What every process of a service has: a lifecycle, logs, probes, metrics and timers."""
