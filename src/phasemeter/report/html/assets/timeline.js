(() => {
'use strict';
const P = window.phasemeter;
const place = document.getElementById('timeline-here');
const told = P.data('timeline-data');
if (!place || !told || !told.rows.length) return;
const rows = told.rows, lowest = told.from_ms, span = Math.max(told.to_ms - told.from_ms, 1e-6);

const tools = P.el('div', { class: 'tools', role: 'group', 'aria-label': 'Which requests, and zoom' }, place);
const choose = told.groups.map((group) => {
  const button = P.el('button', { type: 'button', class: 'quiet choice', 'aria-pressed': 'false' }, tools, `${group.name} (${group.n})`);
  button.addEventListener('click', () => show(group.bit));
  return [group.bit, button];
});
const zoomed = (factor) => () => zoom(factor);
P.el('button', { type: 'button', class: 'quiet', 'aria-label': 'Zoom in' }, tools, '+').addEventListener('click', zoomed(2));
P.el('button', { type: 'button', class: 'quiet', 'aria-label': 'Zoom out' }, tools, '−').addEventListener('click', zoomed(0.5));
P.el('button', { type: 'button', class: 'quiet' }, tools, 'whole run').addEventListener('click', () => { level = 1; size(0); });
P.el('button', { type: 'button', class: 'quiet' }, tools, 'first row').addEventListener('click', () => { if (visible.length) near(visible[0]); });

const frame = P.el('div', { class: 'tl' }, place);
const scroll = P.el('div', { class: 'tl-scroll', tabindex: '0', role: 'region', 'aria-label': 'Time line of requests; plus and minus zoom, arrow keys walk its rows' }, frame);
const inner = P.el('div', { class: 'tl-inner' }, scroll);
const axis = P.el('div', { class: 'tl-axis', 'aria-hidden': 'true' }, inner);
const body = P.el('div', {}, inner);
const detail = P.el('div', { class: 'detail', id: 'request-detail', role: 'region', 'aria-label': 'One request', hidden: '' }, place);

let level = 1, visible = [], from = lowest, width = span, expanded = null;
const label = () => parseFloat(getComputedStyle(frame).getPropertyValue('--label')) || 150;
const trackWidth = () => (scroll.clientWidth - label()) * level;

const marks = () => {
  axis.replaceChildren();
  const shownMs = width / level, left = from + scroll.scrollLeft / trackWidth() * width;
  const x = P.scale(left, left + shownMs, 0, 1, false);
  const narrow = scroll.clientWidth < 560;
  for (const at of x.ticks(narrow ? 3 : 8)) {
    if (at < left || at > left + shownMs) continue;
    const tick = P.el('span', {}, axis, width / level > 3000 ? P.number(at / 1000, 7) + ' s' : P.number(at, 7) + ' ms');
    tick.style.left = (at - from) / width * trackWidth() + 'px';
  }
};
const size = (keep) => {
  inner.style.width = label() + trackWidth() + 'px';
  if (keep !== undefined) scroll.scrollLeft = keep;
  marks();
};
const zoom = (factor, at = 0.5) => {
  const before = trackWidth(), middle = (scroll.scrollLeft + (scroll.clientWidth - label()) * at) / before;
  level = Math.max(1, Math.min(4000, level * factor));
  size(middle * trackWidth() - (scroll.clientWidth - label()) * at);
};
const near = (row) => {
  const length = Math.max(row.end - row.due, span / 4000);
  level = Math.max(1, Math.min(4000, width / (length * 1.6)));
  size();
  scroll.scrollLeft = (row.due - from - length * 0.3) / width * trackWidth();
  marks();
};
const bar = (track, kind, a, b, title) => {
  if (a === null || b === null || b < a) return;
  const one = P.el('span', { class: 's-' + kind }, track);
  if (title) one.title = title;
  one.style.left = ((a - from) / width * 100).toFixed(5) + '%';
  one.style.width = ((b - a) / width * 100).toFixed(5) + '%';
};
const words = (r) => `${r.id}: ${r.outcome}${r.failure ? ' (' + r.failure + ')' : ''}` + (r.first !== null && r.send !== null ? `, first output after ${P.ms(r.first - r.send)}` : '') +
  `, over after ${P.ms(r.end - r.due)}, due at ${P.ms(r.due)}`;
const line = (r) => {
  const row = P.el('button', { type: 'button', class: 'tl-row', tabindex: '-1', 'aria-expanded': 'false', 'aria-controls': 'request-detail', 'aria-label': words(r) }, body);
  P.el('span', { class: 'tl-name' }, row, (r.outcome === 'ok' ? '' : '✗ ') + r.id);
  const track = P.el('span', { class: 'tl-track' }, row);
  if (r.send !== null) bar(track, 'client_queue', r.due, r.send, 'client queue');
  if (r.first !== null && r.send !== null) {
    if (r.laid.length) for (const [kind, a, b] of r.laid) bar(track, kind, a, b, kind);
    else bar(track, 'wait', r.send, r.first, 'until the first output');
    if (r.firstOut !== null && r.firstOut > r.first) bar(track, 'reasoning', r.first, r.firstOut, 'reasoning');
    bar(track, 'decode', r.firstOut ?? r.first, r.last, 'decode');
    for (const [a, b] of r.stalls) bar(track, 'stalls', a, b, 'a gap over 5 times its median gap');
    bar(track, 'tail', r.last, r.end, 'tail');
  } else if (r.send !== null) bar(track, r.outcome === 'ok' ? 'wait' : 'failed', r.send, r.end, r.failure || r.outcome);
  row.addEventListener('click', () => open(r, row));
  r.row = row;
};
const show = (bit) => {
  choose.forEach(([own, button]) => button.setAttribute('aria-pressed', String(own === bit)));
  visible = rows.filter((r) => r.groups & bit);
  from = Math.min(...visible.map((r) => r.due));
  width = Math.max(Math.max(...visible.map((r) => r.end)) - from, 1e-3) * 1.01;
  body.replaceChildren();
  visible.forEach(line);
  if (visible.length) visible[0].row.tabIndex = 0;
  const screen = visible.slice(0, Math.max(5, Math.floor(scroll.clientHeight / 18) - 1));
  level = Math.max(1, Math.min(400, width / Math.max(1e-3, Math.max(...screen.map((r) => r.end)) - from)));
  top = scroll.scrollTop = 0;
  size(0);
  P.el('p', { class: 'offscreen' }, body, `${visible.length} requests shown`);
};
const focus = (i) => {
  const row = visible[Math.max(0, Math.min(visible.length - 1, i))];
  visible.forEach((one) => { one.row.tabIndex = one === row ? 0 : -1; });
  row.row.focus();
};
scroll.addEventListener('keydown', (event) => {
  const i = visible.findIndex((one) => one.row === document.activeElement);
  const act = { '+': () => zoom(2), '=': () => zoom(2), '-': () => zoom(0.5), ArrowDown: () => focus(i + 1), ArrowUp: () => focus(i < 0 ? 0 : i - 1),
    Home: () => focus(0), End: () => focus(visible.length - 1), PageDown: () => focus(i + 10), PageUp: () => focus(i - 10) }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
let top = 0;
scroll.addEventListener('scroll', () => {
  if (scroll.scrollTop !== top && level > 1) { // rows are in due order: what one scrolls down to stays in sight
    top = scroll.scrollTop;
    const row = visible[Math.min(visible.length - 1, Math.floor(top / 18))];
    if (row) scroll.scrollLeft = (row.due - from) / width * trackWidth() - 0.02 * scroll.clientWidth;
  }
  requestAnimationFrame(marks);
});
scroll.addEventListener('wheel', (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(event.deltaY < 0 ? 1.25 : 0.8, Math.max(0, (event.clientX - scroll.getBoundingClientRect().left - label()) / (scroll.clientWidth - label())));
}, { passive: false });
new ResizeObserver(() => size()).observe(scroll);

P.strip = (parent, title, note, parts) => {
  const strip = P.el('div', { class: 'strip' }, parent);
  P.el('h4', {}, strip, title);
  if (note) P.el('p', { class: 'note' }, strip, note);
  const whole = parts.reduce((sum, part) => sum + Math.max(part.ms, 0), 0) || 1;
  const line = P.el('div', { class: 'bar', 'aria-hidden': 'true' }, strip);
  const list = P.el('ul', {}, strip);
  for (const part of parts) {
    const one = P.el('span', { class: 's-' + part.kind }, line);
    one.style.width = Math.max(part.ms, 0) / whole * 100 + '%';
    const item = P.el('li', {}, list);
    P.el('span', { class: 'swatch s-' + part.kind, 'aria-hidden': 'true' }, item);
    item.append(part.name + ' ');
    const figure = P.el('button', { type: 'button', class: 'fig', 'data-copy': `${part.name} = ${P.ms(part.ms)}: ${part.what}` }, item, P.ms(part.ms));
    figure.title = part.what;
    if (part.source) item.append(' · ' + part.source);
  }
};
const client = (r) => {
  const parts = [];
  const add = (kind, name, a, b, what) => { if (a !== null && b !== null) parts.push({ kind, name, ms: b - a, what }); };
  add('client_queue', 'client queue', r.due, r.send, 'due → send_start, client clock');
  if (r.first === null) { add('failed', r.outcome, r.send, r.end, 'send_start → end, client clock'); return parts; }
  add('wait', 'request → first output', r.send, r.first, 'send_start → first_token (ttft), client clock');
  if (r.firstOut !== null && r.firstOut > r.first) add('reasoning', 'reasoning', r.first, r.firstOut, 'first_token → first_output, client clock');
  add('decode', 'first → final output', r.firstOut ?? r.first, r.last, 'first_output → last_token, client clock');
  add('tail', 'final output → end', r.last, r.end, 'last_token → stream_end, client clock');
  return parts;
};
const pair = (list, name, value) => { P.el('dt', {}, list, name); P.el('dd', {}, list, value); };
const open = (r, row) => {
  if (expanded) expanded.setAttribute('aria-expanded', 'false');
  expanded = row;
  row.setAttribute('aria-expanded', 'true');
  visible.forEach((one) => { one.row.tabIndex = one === r ? 0 : -1; });
  detail.hidden = false;
  detail.replaceChildren();
  P.el('h3', {}, detail, 'Request ' + r.id);
  const list = P.el('dl', { class: 'pairs' }, detail);
  pair(list, 'outcome', r.outcome + (r.failure ? ': ' + r.failure : '') + (r.status ? ` (HTTP ${r.status})` : ''));
  if (r.text) pair(list, 'in its own words', r.text);
  pair(list, 'tokens', `${r.input ?? 'unknown'} in, ${r.output ?? 'unknown'} out` + (r.source ? ` (by ${r.source})` : '') + (r.cached ? `, ${r.cached} cached` : ''));
  if (r.finish) pair(list, 'finish reason', r.finish);
  if (r.first !== null && r.send !== null) pair(list, 'ttft', P.ms(r.first - r.send));
  if (r.warnings) pair(list, 'warnings', r.warnings);
  const typed = [told.run, r.id].every((name) => /^[\w.:-]+$/.test(name)) ? `phasemeter inspect ${told.run}#${r.id}` : 'phasemeter inspect RUN#REQUEST';
  P.el('dt', {}, list, 'its bytes');
  P.el('button', { type: 'button', class: 'fig', 'data-copy': typed, title: 'copy the command' }, P.el('dd', {}, list), typed);
  P.strip(detail, 'CLIENT: what did the consumer live?', '', client(r));
  if (r.server.length) P.strip(detail, 'SERVER: where did the system spend it?', 'Durations on the server’s own clock. They are never subtracted from the client’s instants.', r.server);
  else P.el('p', { class: 'note' }, detail, 'SERVER: no evidence on record for this request; the wait above holds ingress, queue, prefill and delivery in one lump.');
  if (r.events.length > 1) {
    const gaps = r.events.slice(1).map((at, i) => at - r.events[i]);
    const figure = P.el('figure', { class: 'plot' }, detail);
    P.el('h4', {}, figure, 'Gaps between its output events');
    P.chart(P.el('div', { class: 'chart' }, figure), { title: 'Gaps between its output events', summary: `${gaps.length} gaps.`, x: { label: 'since the send', unit: 'ms' },
      y: { label: 'gap', unit: 'ms', zero: true }, series: [{ name: 'inter_chunk', kind: 'points', x: r.events.slice(1), y: gaps }] });
    if (r.cut) P.el('p', { class: 'note' }, detail, `The first ${r.events.length} of ${r.cut} output events.`);
  }
  detail.scrollIntoView({ block: 'nearest' });
};
show(told.groups[0].bit);
})();
