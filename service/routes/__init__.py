"""The HTTP routes, one noun a module."""
