"""The artifact store: bytes too large for an event, their collection when nothing names them, and their check."""
