"""The inputs that models are compared on: sizes, contents, edges, and the user's."""
