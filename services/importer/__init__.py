"""Recorded sessions of Claude Code and Codex are read, turned into events of threads, and reported on."""
