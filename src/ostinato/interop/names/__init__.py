"""Tables of names: which parameter of a model of ours is which tensor in public weights."""
