"""What a thread already has of a session is compared with the file, and what is new becomes events by folding ahead."""
