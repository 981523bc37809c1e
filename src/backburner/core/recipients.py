"""Recipients of notices. The ledger stores a recipient as text (`inbox`, `session:CLIENT:KEY`, `to:CHANNEL`); only this module parses it."""

from enum import StrEnum

from backburner.core.light_typing import NamedTuple


class RecipientKind(StrEnum):
    """The kind of recipient of a notice; stored in the ledger."""

    PERSON = "person"
    SESSION = "session"
    CHANNEL = "channel"  # a configured channel, such as Discord


_PREFIXES = {"session": RecipientKind.SESSION, "to": RecipientKind.CHANNEL}  # the part before the colon


class Recipient(NamedTuple):
    """The person, a session or a channel, with its name."""

    kind: RecipientKind
    name: str = ""

    def __str__(self) -> str:
        match self.kind:
            case RecipientKind.PERSON:
                return "inbox"
            case RecipientKind.SESSION:
                return f"session:{self.name}"
            case RecipientKind.CHANNEL:
                return f"to:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Recipient":
        prefix, _, name = text.partition(":")
        return cls(_PREFIXES[prefix], name) if prefix in _PREFIXES else PERSON


PERSON = Recipient(RecipientKind.PERSON)
INBOX = str(PERSON)


def recipient_of(session: str | None) -> Recipient:
    """Return the recipient of notices about a task: the session that submitted it, or the person if there is none."""
    return PERSON if session is None else Recipient(RecipientKind.SESSION, session)


def to_channel(name: str) -> str:
    """Return a channel as the text of a recipient."""
    return str(Recipient(RecipientKind.CHANNEL, name))
