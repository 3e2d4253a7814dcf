"""Imports of recorded sessions: jobs in Postgres, and the process that works on them."""
