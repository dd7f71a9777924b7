"""What the page shows of the running cluster, and the stream behind it."""
