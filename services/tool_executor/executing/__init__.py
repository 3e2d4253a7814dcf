"""The loop that follows the log, and what it does for each call: slots, claims, runs, leases, questions."""
