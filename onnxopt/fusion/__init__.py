"""Regions of a graph that become one kernel: search, cost, eligibility, outlining. May import program and graph."""
