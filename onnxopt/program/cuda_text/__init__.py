"""Programs and what cores read, as CUDA source: what the texts of several kinds have in common."""
