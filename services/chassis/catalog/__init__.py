"""The tool catalog: publish a process's own tools, follow all tools, check arguments against a schema."""
