"""Where tools act: the folder of a thread, its processes, its sandbox, and changes of its files."""
