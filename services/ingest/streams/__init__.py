"""What clients see of a thread as it happens: one reader of the log, folds of watched threads, and streams of
server-sent events.
"""
