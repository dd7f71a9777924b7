"""Pools of replicas: what each is made of, how it scales, sleeps, wakes and lends."""
