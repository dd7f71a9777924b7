"""What Kubernetes runs in our pods beside Ray: before a worker starts, and before it ends."""
