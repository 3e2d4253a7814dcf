"""What clients may ask to change: from an accepted request to a record in the log and its effect."""
