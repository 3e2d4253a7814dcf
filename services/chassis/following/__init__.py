"""Follow threads: read their partitions in log order, fold each record, and tell the service what changed."""
