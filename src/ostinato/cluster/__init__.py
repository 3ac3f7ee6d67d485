"""Work in other processes: of this machine, or of a Ray cluster. What work that is, the rooms above say."""
