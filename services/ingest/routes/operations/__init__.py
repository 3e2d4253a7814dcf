"""The operations for operators, which read data of all tenants."""
