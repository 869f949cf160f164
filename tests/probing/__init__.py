"""What a training script says to x5tune, against a real socket and from real processes."""
