"""A planned request and what was captured of it → its row: every boundary, every count.

Lives here: the join of plan, capture and exchange. Must not live here: differences, ratios (definitions), bytes (wire/).
"""

from __future__ import annotations

import msgspec

from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.metrics.tokens import TokenCounts, Tokenizer, count_tokens, single_arrival
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.wire.events import REASONING, REFUSAL, Choice
from phasemeter.wire.exchange import Exchange, exchange_of


def row_of(
    planned: PlannedRequest, capture: Capture, clock: ReceiveClock, tokenizer: Tokenizer | None = None
) -> RequestRow:
    """One request's row. `clock` maps the kernel's receive stamps and counts what it could not map.

    Raises UserError for an API that is not known; whatever the bytes are, they raise nothing.
    """
    return row_and_exchange(planned, capture, clock, tokenizer)[0]


def row_and_exchange(
    planned: PlannedRequest,
    capture: Capture,
    clock: ReceiveClock,
    tokenizer: Tokenizer | None = None,
    echo_prompt: str | None = None,
) -> tuple[RequestRow, Exchange]:
    """The row, and the exchange it was read from (its text, its raw server timings). `echo_prompt`: where `echo` was asked for."""
    received = clock.times(capture.reads, capture.send_start_ns)
    exchange = exchange_of(planned, capture, received.times_ns, echo_prompt)
    counts = count_tokens(exchange, tokenizer)
    return _row(planned, capture, exchange, counts, received.observer_lag_ns), exchange


def _row(
    planned: PlannedRequest, capture: Capture, exchange: Exchange, counts: TokenCounts, observer_lag_ns: int | None
) -> RequestRow:
    row = row_of_exchange(exchange, counts, planned.request_id, capture.due_ns)
    return msgspec.structs.replace(
        row,
        phase=planned.phase,
        worker=capture.worker,
        workload_class=planned.workload_class,
        sent_id=planned.sent_id,
        conversation=planned.conversation,
        turn=planned.turn,
        asked_input_tokens=planned.input_tokens,
        connect_start_ns=capture.connect_start_ns,
        dns_done_ns=capture.dns_done_ns,
        tcp_connected_ns=capture.tcp_connected_ns,
        connected_ns=capture.connected_ns,
        send_start_ns=capture.send_start_ns,
        sent_ns=capture.sent_ns,
        observer_lag_ns=observer_lag_ns,
        resent=capture.resent,
        reused_connection=capture.reused_connection,
    )


def row_of_exchange(exchange: Exchange, counts: TokenCounts, request_id: str, due_ns: int) -> RequestRow:
    """The row of an exchange that no plan stands behind: sent when it was due."""
    asked = exchange.asked
    return RequestRow(
        request_id=request_id,
        api=asked.api,
        stream=asked.stream,
        outcome=exchange.outcome,
        failure=exchange.failure,
        failure_text=exchange.failure_text,
        http_status=exchange.status,
        warnings=tuple(sorted(exchange.warnings | counts.warnings)),
        asked_output_tokens=asked.max_tokens,
        n=asked.n,
        due_ns=due_ns,
        send_start_ns=due_ns,
        headers_ns=exchange.headers_ns,
        first_read_ns=exchange.first_read_ns,
        first_chunk_ns=exchange.first_chunk_ns,
        first_token_ns=exchange.first_token_ns,
        first_output_ns=exchange.first_output_ns,
        last_token_ns=exchange.last_token_ns,
        stream_end_ns=exchange.stream_end_ns,
        input_tokens=exchange.prompt_tokens,
        cached_tokens=exchange.cached_tokens,
        output_tokens=counts.output_tokens,
        output_tokens_source=counts.source,
        server_output_tokens=counts.server,
        local_output_tokens=counts.local,
        reasoning_tokens=counts.reasoning,
        hidden_reasoning=counts.hidden_reasoning,
        visible_tokens=counts.visible,
        first_token_by_usage_ns=exchange.first_usage_ns if _told_per_chunk(exchange) else None,
        finish_reason=exchange.finish_reason,
        response_id=exchange.response_id,
        choices=tuple(
            _choice_times(exchange, choice, position, counts)
            for position, choice in enumerate(exchange.choices)
            if choice.reads
        ),
        single_arrival=single_arrival(exchange),
        usage_ns=exchange.usage_ns,
        silent_chunks=exchange.silent_chunks,
        first_silent_chunk_ns=exchange.first_silent_ns,
        last_silent_chunk_ns=exchange.last_silent_ns,
        silent_times_ns=exchange.silent_ns,
        bare_times_ns=exchange.bare_ns,
        refusal=any(choice.has(REFUSAL) for choice in exchange.choices),
        reasoning_field=exchange.reasoning_field,
    )


def _told_per_chunk(exchange: Exchange) -> bool:
    """Whether usage came with the tokens, from the first one on: a total at the end of a choice times no token."""
    first, token = exchange.first_usage_ns, exchange.first_token_ns
    return exchange.usage_told > 1 and first is not None and (token is None or first <= token)


def _choice_times(exchange: Exchange, choice: Choice, position: int, counts: TokenCounts) -> ChoiceTimes:
    runs = choice.runs
    leading = 0
    if runs and runs[0][1] == REASONING:
        leading = runs[1][0] if len(runs) > 1 else len(choice.reads)
    return ChoiceTimes(
        index=choice.index,
        times_ns=exchange.times_of(choice),
        reads=tuple(choice.reads),
        tokens=counts.per_event[position],
        reasoning_events=leading,
        finish_reason=choice.finish_reason,
        output_tokens=counts.per_choice[position],
    )
