"""Models that do not come as a folder of the hub: in packages of a registry, and in GGUF files."""
