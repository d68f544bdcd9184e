"""The command, and the functions that only it and the API use: bench, tune, doctor, explain. May import every room."""
