"""Matrix products with the nodes around them. Part of kinds: may import program to fusion."""
