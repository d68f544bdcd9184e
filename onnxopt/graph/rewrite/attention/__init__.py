"""Rules that recognise attention in its many spellings, and what surrounds it."""
