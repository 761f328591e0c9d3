"""Models that do not come from a hub: embedded ones, those in packages or GGUF files, and planted circuits."""

__all__ = ["embedded", "embedded_words", "files", "gguf", "packaged", "planted", "planted_roles", "table"]
