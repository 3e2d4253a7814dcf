"""What the records of every topic mean: events, the fold that judges them, and the formats that all services share."""
