"""The database: connections, roles, migrations, and reads that see one tenant alone."""
