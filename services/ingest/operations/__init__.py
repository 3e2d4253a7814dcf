"""What operators read about all tenants: what is stuck, what could not be stored, and the live windows."""
