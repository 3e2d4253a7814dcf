"""The Python client of the HTTP API: it sends commands again, keeps cursors and follows threads."""
