"""The sessions of Claude Code as pieces that belong to no tool: which record belongs to which thread and turn."""
