"""What runs on one machine only: an embedded broker and database, and services as supervised processes."""
