"""The original model against the optimized one: inputs, runs, comparison, bisection. May import program to runtime."""
