"""Where tools come from: the operator's file, MCP servers, reconcile hooks, and the entries of the catalog."""
