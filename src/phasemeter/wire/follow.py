"""Most events of a stream repeat one another but for a text and a count: they are recognised instead of read.

Lives here: what recognised events add to a reading, as reading them in full would. Must not live here: what is recognised
(template, shape), reading in full (stream).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from phasemeter.wire.events import Reading, Told, usage_of
from phasemeter.wire.shape import Path, Shape, shape_of
from phasemeter.wire.template import TEMPLATES, Template, learn

SHAPES = 4  # kept at a time
MANY, FEW = 256, 8  # reads looked at together; so few of a kind, and the next MANY are looked at one by one
TRIES = 12  # a stream whose events never repeat is read in full
PLAIN = Told()
KNOWN: deque[Shape] = deque(maxlen=8)  # of any stream: a memo, streams of one server share their shapes

Place = tuple[Path, int, str]

_read_any = msgspec.json.Decoder()


class Follower:
    """Learns from events that were read in full; `follow` takes the reads that repeat them. `events`: how many it took."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.events = 0
        self.templates: list[Template] = []
        self.shapes: list[Shape] = []
        self._places: set[Place] = set()  # of the templates learnt so far
        self._tries = 0

    @property
    def ready(self) -> bool:
        return bool(self.templates or self.shapes)

    def learn(self, data: bytes, body: bytes, document: bytes) -> None:
        """Learn from the event that the read `data` held whole and that was just read in full.

        The first of a kind is taken for one that differs in its text alone; when that did not fit the next, for a shape.
        """
        place, told = self.reading.plain, self.reading.told
        if place is None or self._tries >= TRIES:
            return
        self._tries += 1
        if told == PLAIN and place not in self._places:
            template = learn(data, body, document, place)
            if template is not None:
                self._places.add(place)
                self.templates.insert(0, template)
                del self.templates[TEMPLATES:]
                return
        shape = self._known(data, place, told) or shape_of(data, body, document, place, told)
        if shape is not None and (self.reading.response_id is not None or not shape.named):
            if told == PLAIN:  # what tried to be a template and never fitted
                self.templates = [one for one in self.templates if (one.choice, one.channel) != place[1:]]
            self.shapes.insert(0, shape)
            del self.shapes[SHAPES:]
            if shape.fullmatch not in [one.fullmatch for one in KNOWN]:
                KNOWN.append(shape)

    @staticmethod
    def _known(data: bytes, place: Place, told: Told) -> Shape | None:
        """The shape of an earlier stream, if it fits this one too."""
        for shape in KNOWN:
            if (shape.place, shape.choice, shape.channel) == place and shape.told == told:
                found = shape.of(data)
                if found is not None:
                    return found
        return None

    def follow(self, reads: Sequence[bytes], number: int) -> int:
        """Takes reads from `number` on as long as one fits; the number of the first that none does."""
        begun = number
        while number < len(reads):
            before = number
            if self.templates:
                number = self._plain(reads, number)
            for shape in self.shapes:
                if number < len(reads):
                    number = self._row(shape, reads, number)
            if number == before:
                break
        self.events += number - begun
        return number

    def _plain(self, reads: Sequence[bytes], number: int) -> int:
        """Takes reads from `number` on as long as a template fits: many at once, or one by one where templates take turns."""
        begun, alone = number, 0
        while number < len(reads):
            template, text = self._fitting(reads[number])
            if template is None:
                break
            texts = [text]
            if alone:
                alone -= 1
            else:
                texts = template.texts(reads[number : number + MANY]) or texts
                alone = MANY if len(texts) < FEW else 0
            choice = self.reading.choices[template.choice]
            if choice.runs[-1][1] != template.channel:
                choice.runs.append((len(choice.reads), template.channel))
            choice.reads.extend(range(number, number + len(texts)))
            choice.texts.extend(texts)
            number += len(texts)
        self.reading.data_events += number - begun
        return number

    def _fitting(self, data: bytes) -> tuple[Template | None, str]:
        """The template of that read, and its text."""
        for template in self.templates:
            text = template.text(data)
            if text is not None:
                return template, text
        return None, ""

    def _row(self, shape: Shape, reads: Sequence[bytes], number: int) -> int:
        """Takes reads from `number` on as long as that shape fits; the number of the first that it does not."""
        texts, counts, last = shape.take(reads, number)
        end = number + len(texts)
        if last is not None:
            self._take(shape, range(number, end), texts, counts)
            if shape.last_wins:
                self._last_wins(shape, last[shape.document])
        return end

    def _take(self, shape: Shape, numbers: range, texts: list[str], counts: list[int]) -> None:
        """What a row of events adds: texts in their reads, the tokens told with each, the running counts."""
        reading, told = self.reading, shape.told.tokens
        reading.data_events += len(numbers)
        choice = reading.choices[shape.choice]
        if choice.runs[-1][1] != shape.channel:
            choice.runs.append((len(choice.reads), shape.channel))
        events = range(len(choice.reads), len(choice.reads) + len(numbers))
        choice.reads.extend(numbers)
        choice.texts.extend(texts)
        if told:
            choice.logprob_tokens = (choice.logprob_tokens or 0) + told * len(numbers)
            choice.token_counts.update(dict.fromkeys(events, told))
            choice.token_counts[events[0]] += choice.silent_tokens
            choice.silent_tokens = 0
        if counts:
            reading.usage_read, reading.usage_alone = numbers[-1], False
            reading.usage_told += len(counts)
            if reading.first_usage_read is None:
                reading.first_usage_read = numbers[0]
            reading.usage_steps.extend(counts)
            choice.usage_now = counts[-1]
            choice.cumulative.update(zip(events, counts, strict=True))

    def _last_wins(self, shape: Shape, document: bytes) -> None:
        whole = _read_any.decode(document)
        self.reading.keep_timings(whole)
        usage = usage_of(whole.get("usage")) if shape.told.counts else None
        if usage is not None:
            self.reading.merge(usage)
