"""Many models: which ones, one after the other or on many processes and machines, and what became of each."""
