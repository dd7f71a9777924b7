"""One engine: admit, allocate, batch, run, stream. Knows no Ray, no HTTP and no Redis."""
