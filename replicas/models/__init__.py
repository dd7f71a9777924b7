"""Model files and the decoders that run them."""
