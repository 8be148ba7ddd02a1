"""Kshipra: a laboratory bench for LLM inference, with an engine that is correct to the token."""
