"""Masks of attention in one form."""
