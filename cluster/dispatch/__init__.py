"""From a gateway to the replicas: who is there, who takes a request, and what if it is lost."""
