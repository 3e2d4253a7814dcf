"""Effects are counted per tenant and minute, for the live windows of operators."""
