"""Artifacts in the formats of other servers. Part of artifact: may import program to verification."""
