"""What clients read: pages and rows of the published views, and a thread's state at any of its records."""
