"""The plain torch back end: the truth that the others are measured against."""
