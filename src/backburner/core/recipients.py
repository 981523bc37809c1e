"""Recipients of notices. The ledger has one as a text (`inbox`, `session:CLIENT:KEY`, `to:CHANNEL`); only this module takes it apart."""

from enum import StrEnum
from typing import NamedTuple


class RecipientKind(StrEnum):
    """Who a notice is for; a column of the ledger."""

    PERSON = "person"
    SESSION = "session"
    CHANNEL = "channel"  # a configured channel, such as Discord


_WORDS = {"session": RecipientKind.SESSION, "to": RecipientKind.CHANNEL}  # before the colon


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
        word, _, name = text.partition(":")
        return cls(_WORDS[word], name) if word in _WORDS else PERSON


PERSON = Recipient(RecipientKind.PERSON)
INBOX = str(PERSON)


def recipient_of(session: str | None) -> Recipient:
    """Who is told about a task that a session asked for; without a session it is the person."""
    return PERSON if session is None else Recipient(RecipientKind.SESSION, session)


def to_channel(name: str) -> str:
    """A channel as the recipient of notices."""
    return str(Recipient(RecipientKind.CHANNEL, name))
