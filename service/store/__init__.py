"""Queries and changes, one noun a module; none of them commits."""
