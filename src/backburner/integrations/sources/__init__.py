"""Sources: adapters of the port `Source`. Each watches the world for one task, from what was seen last."""


class SourceBroken(Exception):
    """A source cannot see anything until a person has changed something; the message says what, in a plain sentence."""
