"""Models of real work: they make traces of any size and rate, of lengths and times alone."""
