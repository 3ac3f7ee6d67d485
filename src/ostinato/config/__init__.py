"""Settings of recipes, sweeps, spaces and claims: their types, their checks, and how files of them are read."""
