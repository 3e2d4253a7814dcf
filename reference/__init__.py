"""Generators of the documents that are made from code: events, states, HTTP API, views, metrics, settings and rooms."""
