"""The public face of x5tune."""
