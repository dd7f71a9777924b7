"""One trace for each generation call, made when the call is over; off unless it is asked for."""
