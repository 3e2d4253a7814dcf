"""What services read of threads: stored states, contexts of forks, and skills as archives."""
