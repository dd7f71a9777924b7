"""Every decision across replicas, as pure code: events in, commands out, the clock an argument."""
