"""What can go wrong with a store, in words that the one who starts it can act on."""


class StoreUnavailable(Exception):
    """The store cannot be reached, refuses us, or is no such server; the message says which."""
