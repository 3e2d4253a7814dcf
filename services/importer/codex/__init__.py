"""The sessions of Codex as pieces that belong to no tool, in the record formats of all its versions."""
