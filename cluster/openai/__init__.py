"""OpenAI's request and response shapes, errors and event frames; no Ray, no engine."""
