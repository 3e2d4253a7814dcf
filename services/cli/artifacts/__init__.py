"""`threadlog artifacts` checks the artifact store and collects what nothing names."""
