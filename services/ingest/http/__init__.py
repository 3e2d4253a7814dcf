"""The HTTP face of the service without its operations: how they are declared, read, described and refused."""
