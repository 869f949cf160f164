"""What a person sees, in a real Chromium."""
