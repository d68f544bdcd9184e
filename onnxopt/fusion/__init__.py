"""Regions of a graph, each for one kernel of any kind. May import graph and the rooms before it."""
