"""Passes into tokens: geometry, cache, sampling, the one step, and the engine that runs a mode over it."""
