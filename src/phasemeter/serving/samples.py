"""Requests of several samples, for engines whose scheduler knows one sequence a request: each sample runs as a request of its own.

Lives here: `Families`, which splits a request and puts together what is told of its samples. Must not live here: engines (deploy.py).

vLLM v1 enters all samples at once, and they share the prompt's full blocks where its prefix cache names them. SGLang first computes the
prompt alone, for no token, then enters all, which find it in the radix cache. Nothing is copied on write: a last block that isn't full
is computed by each. What is told of a request is told of its slowest sample: it has its k-th token when each sample has.

Source: vLLM `v1/engine/parallel_sampling.py`; SGLang `managers/tokenizer_manager.py` (`_handle_batch_request`).
"""

from __future__ import annotations

import msgspec

from phasemeter.serving.events import Aborted, Admitted, Event, Finished, Preempted, Tokens, Truth
from phasemeter.serving.sequence import Request


class Family:
    """One request and its samples by id: the tokens each has, what is known of those that have ended."""

    def __init__(self, request: Request, samples: list[Request], leader: Request | None) -> None:
        self.request = request
        self.leader = leader  # computes the prompt before the samples come
        self.later = samples if leader is not None else []
        self.tokens = {sample.request_id: 0 for sample in samples}
        self.inside = [leader.request_id] if leader is not None else list(self.tokens)
        self.told = 0
        self.admitted = False
        self.truths: list[Truth] = []
        self.first: Truth | None = None  # of who came first: it found what others had left in the cache

    def truth(self) -> Truth:
        """Of the whole: the instants of its slowest sample, the stalls of the one that ended last, everybody's preemptions."""
        last, truths = (
            self.truths[-1],
            self.truths if self.leader is None else [*self.truths, self.first or self.truths[0]],
        )
        first_ns = max(truth.first_token_ns for truth in self.truths)
        return msgspec.structs.replace(
            last,
            request_id=self.request.request_id,
            samples=self.request.samples,
            cached_tokens=(self.first or last).cached_tokens,
            arrival_ns=self.request.arrival_ns,
            queue_enter_ns=min(truth.queue_enter_ns for truth in truths),
            prefill_start_ns=min(truth.prefill_start_ns for truth in truths),
            prefill_end_ns=first_ns,
            first_token_ns=first_ns,
            preemptions=sum(truth.preemptions for truth in truths),
        )


class Families:
    """`prompt_first`: the prompt is computed alone before the samples come (SGLang)."""

    def __init__(self, *, prompt_first: bool) -> None:
        self.prompt_first = prompt_first
        self.by_id: dict[str, Family] = {}  # of requests
        self.of: dict[str, Family] = {}  # of samples and leaders that are inside

    def split(self, request: Request, block_size: int) -> list[Request]:
        """Who is to be submitted in its place now. Answers differ: only blocks of the prompt have equal names."""
        replace, name = msgspec.structs.replace, request.request_id
        shared = request.block_hashes[: request.prompt_tokens // block_size]
        alone = replace(request, samples=1, block_hashes=shared)
        samples = [replace(alone, request_id=f"{index}_{name}") for index in range(request.samples)]
        leader = (
            replace(alone, request_id=f"prompt_{name}", output_tokens=1, max_tokens=0) if self.prompt_first else None
        )
        family = self.by_id[name] = Family(request, samples, leader)
        for one in family.inside:
            self.of[one] = family
        return samples if leader is None else [leader]

    def members(self, request_id: str) -> list[str] | None:
        """The ids inside of a request's samples; None: it isn't one that was split. They will be called off."""
        family = self.by_id.get(request_id)
        if family is None:
            return None
        family.later = []
        return list(family.inside)

    def hear(self, events: list[Event]) -> tuple[list[Event], list[Request]]:
        """What is told instead of `events`, and who is to be submitted now."""
        told: list[Event] = []
        coming: list[Request] = []
        for event in events:
            if isinstance(event, Tokens):
                told.append(self._tokens(event))
            elif (family := self.of.get(event.request_id)) is None:
                told.append(event)
            else:
                told += self._of_sample(event, family)
                if isinstance(event, Finished) and not family.inside and family.later:
                    coming += self._enter(family)
        return told, coming

    def _enter(self, family: Family) -> list[Request]:
        samples, family.later = family.later, []
        family.inside = [sample.request_id for sample in samples]
        for name in family.inside:
            self.of[name] = family
        return samples

    def _tokens(self, event: Tokens) -> Tokens:
        if not any(name in self.of for name in (*event.first, *event.more)):
            return event
        first = [name for name in event.first if name not in self.of]
        more = [name for name in event.more if name not in self.of]
        touched: dict[Family, None] = {}
        for name in (*event.first, *event.more):
            family = self.of.get(name)
            if family is not None and name in family.tokens:
                family.tokens[name] += 1
                touched[family] = None
        for family in touched:
            if min(family.tokens.values()) > family.told:
                family.told += 1
                (first if family.told == 1 else more).append(family.request.request_id)
        return Tokens(event.start_ns, event.at_ns, tuple(first), tuple(more))

    def _of_sample(self, event: Event, family: Family) -> list[Event]:
        name = family.request.request_id
        if isinstance(event, Admitted):
            once, family.admitted = not family.admitted, True
            return [Admitted(event.at_ns, name)] if once else []
        if isinstance(event, Preempted):
            return [Preempted(event.at_ns, name, event.how)]
        if not isinstance(event, Finished | Aborted):
            return []
        del self.of[event.request_id]
        family.inside.remove(event.request_id)
        if isinstance(event, Finished):
            if family.first is None and (family.leader is not None or event.request_id.startswith("0_")):
                family.first = event.truth
            if family.leader is None or event.request_id != family.leader.request_id:
                family.truths.append(event.truth)
        if family.inside or family.later:
            return []
        del self.by_id[name]
        if len(family.truths) == family.request.samples:
            return [Finished(event.at_ns, name, family.truth())]
        return [Aborted(event.at_ns, name)]
