"""What the prefix caches of all replicas can find, kept exact from what they tell."""
