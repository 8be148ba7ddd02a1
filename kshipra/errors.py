"""Errors a person can cause or mend. The message is one sentence, shown as it is, that says what to do
next."""


class KshipraError(Exception):
    """Something that the person at the page or the shell can put right."""


class InputError(KshipraError):
    """A prompt, a parameter or a choice that is out of its range."""


class ModelError(KshipraError):
    """A model that cannot be found, fetched or run."""


class UnreachableError(ModelError):
    """A model that is not on this machine and cannot be fetched now."""
