"""Short programs that show how a backend uses threadlog; each one runs against `threadlog dev`."""
