"""One replica around its engine: keeps it running, takes requests, says what it holds and does."""
