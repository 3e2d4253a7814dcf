"""A generation of the views in Postgres: its schema, its statements, its positions, and who may write it."""
