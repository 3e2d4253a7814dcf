"""The tools that every executor has: shell, files, patches, artifacts, skills."""
