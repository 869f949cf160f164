"""Tests of the engine: search, phases, slots, probes, and a whole study on Ray."""
