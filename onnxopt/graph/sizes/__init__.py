"""Passes that find sizes which can only be one number, or related to others in one way, wherever the graph runs."""
