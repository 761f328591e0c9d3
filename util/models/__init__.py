"""Models that do not come from a hub: embedded ones, those in packages or GGUF files, and planted circuits."""
