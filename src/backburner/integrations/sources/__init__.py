"""Sources: implementations of the port `Source`. Each watches files, GitHub or HTTP for one task and continues from a stored state."""


class SourceBroken(Exception):
    """A source cannot work until a person changes something; the message says what."""
