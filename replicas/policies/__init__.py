"""Orders in which waiting requests are considered: one class, one method each."""
