"""Measure speed: whole sessions on real services, and the parts that a session costs."""
