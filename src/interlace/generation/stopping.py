"""From the bytes of tokens to the text of a generation: whole characters, up to a stop string.

    bytes --Utf8Stream--> characters --StopStrings--> text
                                         |
                                         '-- held back: what may still become a stop string

Where several stop strings match, the one that begins first in the text wins; of those that begin at
the same place, the shortest. So the text depends neither on their order nor on how tokens cut
it. "ab|cd" with the stops "bcd" and "c": after "abc" the match of "c" waits, because "bcd" would
begin before it.
"""

from collections.abc import Sequence

from interlace.text import Utf8Stream

__all__ = ["StopStrings", "Transcript"]


class StopStrings:
    """Passes text on and holds back only what may still become a stop string.

    Args:
        stops: the strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # the shortest first: it names the match where several begin together
        self._stops = sorted(set(stops), key=len)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.match: str | None = None
        """The stop string that ended the text, once it has."""

    def feed(self, text: str) -> str:
        """Add `text`; return what is now sure to belong to the output. Nothing after a match."""
        if self.match is not None:
            return ""
        self._held += text
        place, stop = self._first_match()
        open_place = self._first_open(place)
        if stop is not None and place < open_place:
            self.match = stop
            return self._release(place)
        return self._release(open_place)

    def flush(self) -> str:
        """End the text: nothing held back can become more than it is."""
        if self.match is not None:
            return ""
        place, self.match = self._first_match()
        return self._release(place)

    def _first_match(self) -> tuple[int, str | None]:
        """Where the first stop string begins, and which; the end of the text when there is none."""
        best, found = len(self._held), None
        for stop in self._stops:
            place = self._held.find(stop)
            if 0 <= place < best:
                best, found = place, stop
        return best, found

    def _first_open(self, end: int) -> int:
        """The first place, before `end`, from which the text is the beginning of a stop string."""
        for place in range(max(0, len(self._held) - self._longest + 1), end):
            rest = self._held[place:]
            if any(len(rest) < len(stop) and stop.startswith(rest) for stop in self._stops):
                return place
        return len(self._held) if end == len(self._held) else end + 1

    def _release(self, place: int) -> str:
        sure, self._held = self._held[:place], self._held[place:]
        return sure


class Transcript:
    """The text of one generation, from the bytes of its tokens.

    Args:
        stops: strings that end it.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._characters = Utf8Stream()
        self._stops = StopStrings(stops)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What has been passed on so far."""
        return "".join(self._pieces)

    @property
    def match(self) -> str | None:
        """The stop string that ended the text, once it has."""
        return self._stops.match

    def feed(self, data: bytes) -> str:
        """Add the bytes of a token; return the text that they settle, which may be empty."""
        return self._pass(self._stops.feed(self._characters.feed(data)))

    def flush(self) -> str:
        """End the text; return what was held back and belongs to it."""
        tail = self._stops.feed(self._characters.flush())
        return self._pass(tail + self._stops.flush())

    def _pass(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
