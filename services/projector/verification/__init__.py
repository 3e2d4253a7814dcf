"""The log is folded again into a scratch generation, which is compared with the live views."""
