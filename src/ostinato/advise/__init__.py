"""Which model for given data and a given budget: candidates of equal cost, a search over them, and an answer."""
