"""The operations of the API, in groups that are given just what they use."""
