"""The demo shows an agent at work while its services are killed, and checks what happened against the log."""
