"""Bytes that clients send and fetch: artifacts, and what the calls of a turn did to files."""
