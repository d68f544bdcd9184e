"""Small networks, each written by every exporter of the package registries: they run in an environment of their own."""
