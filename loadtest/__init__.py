"""Loads any OpenAI-compatible server the way real traffic does and reports what users felt."""
