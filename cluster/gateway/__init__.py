"""The Serve deployment that speaks HTTP, put together from its parts."""
