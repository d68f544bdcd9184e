"""Passes on 8-bit codes and the products of them."""
