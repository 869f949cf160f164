"""Tests of the command line and the client, as their users run them: real processes against a real service."""
