"""Measurements; every figure is a ratio beside a peer in one run."""
