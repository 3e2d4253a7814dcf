"""The projector makes the views from thread-events, publishes what took effect, and counts it in windows."""
