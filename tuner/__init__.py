"""Search, pruning, confirmation and the only Ray Tune wiring."""
