"""What the runtime does next with a thread: pure functions of its state, the time, and what the process knows."""
