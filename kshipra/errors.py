"""Errors a person can cause or mend. The message is one sentence, shown as it is, that says what to do
next."""


class KshipraError(Exception):
    """Something that the person at the page or the shell can put right. `in_public` says it to strangers,
    where the sentence names this machine's own files or programs."""

    def __init__(self, sentence: str = "", *, in_public: str | None = None) -> None:
        super().__init__(sentence)
        self.in_public = in_public if in_public is not None else sentence


class InputError(KshipraError):
    """A prompt, a parameter or a choice that is out of its range."""


class DoesNotFit(InputError):
    """A run that needs more memory than there is, on a model that alone would fit."""


class ModelError(KshipraError):
    """A model that cannot be found, fetched or run."""


class ServerError(KshipraError):
    """A server that cannot be reached, refuses, or breaks off."""


class UnreachableError(ModelError):
    """A model that is not on this machine and cannot be fetched now."""
