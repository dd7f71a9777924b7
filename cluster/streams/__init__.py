"""The token plane: one stream between each gateway and each replica, and what waits at its ends."""
