(() => {
'use strict';
const P = window.phasemeter;
const place = document.getElementById('explore-here');
if (!place) return;
const told = P.data('explore-data');

// The law: e2e = ttft + (n − 1)·tpot. Times in ms, rates in requests a second.
const wait = (slots, use) => use >= 1 ? Infinity : use ** Math.sqrt(2 * (slots + 1)) / (slots * (1 - use));
P.law = (v) => {
  const prefill = v.prefill_base + v.prefill_per_token * v.input;
  let tpot = v.tpot, queued = 0, use = 0;
  for (let i = 0; i < 60; i++) { // cadence and load hold each other: a few turns settle it
    const held = prefill + Math.max(v.output - 1, 0) * tpot;
    const out = v.rate / 1000 * held;
    use = out / v.slots;
    const next = v.tpot + v.tpot_per_request * Math.max(0, Math.min(out, v.slots) - 1);
    queued = wait(v.slots, use) * held;
    if (Math.abs(next - tpot) < 1e-9) break;
    tpot = next;
  }
  const parts = { unattributed: v.lump, ingress_delivery: v.ingress, queue: v.queue + queued, prefill, first_token: v.hand_off };
  const ttft = parts.unattributed + parts.ingress_delivery + parts.queue + parts.prefill + parts.first_token;
  const decode = Math.max(v.output - 1, 0) * tpot;
  return { parts, ttft, tpot, decode, e2e: ttft + decode, use, stable: use < 1 };
};
const keeps = (v, law) => law.stable && law.ttft <= v.slo_ttft && law.tpot <= v.slo_tpot && law.e2e <= v.slo_e2e;
// The largest whole value of one knob that still keeps the SLO, others as they are; null where none does, Infinity where all do.
P.breaks = (v, knob, most) => {
  const good = (at) => { const one = { ...v, [knob]: at }; return keeps(one, P.law(one)); };
  const least = knob === 'rate' ? 0.01 : 1;
  if (!good(least)) return null;
  if (good(most)) return Infinity;
  let low = least, high = most;
  for (let i = 0; i < 60 && high - low > (knob === 'rate' ? 0.005 : 1); i++) {
    const middle = knob === 'rate' ? (low + high) / 2 : Math.floor((low + high) / 2);
    if (good(middle)) low = middle; else high = middle;
  }
  return low;
};

const NAMES = { unattributed: 'what is not told apart', ingress_delivery: 'ingress + delivery', queue: 'queue', prefill: 'prefill', first_token: 'first-token hand-off', decode: 'decode' };
const inputs = new Map([...document.querySelectorAll('[data-knob]')].map((one) => [one.getAttribute('data-knob'), one]));
const ranges = new Map([...document.querySelectorAll('[data-range]')].map((one) => [one.getAttribute('data-range'), one]));
const state = { ...told.start };
const logged = new Set(['input', 'output', 'rate']);
const toRange = (knob, value) => logged.has(knob) ? Math.log10(Math.max(value, 0.01)) : value;
const fromRange = (knob, value) => logged.has(knob) ? (knob === 'rate' ? +(10 ** value).toPrecision(3) : Math.round(10 ** value)) : value;
for (const [knob, range] of ranges) {
  if (logged.has(knob)) {
    range.min = toRange(knob, +range.getAttribute('min') || 0.01);
    range.max = toRange(knob, +range.getAttribute('max'));
    range.step = '0.01';
  }
}

const answer = document.getElementById('explore-answer'), limits = document.getElementById('explore-limits'), bars = document.getElementById('explore-bars');
const figure = (parent, text, what) => P.el('button', { type: 'button', class: 'fig', 'data-copy': `${text}: ${what}`, title: what }, parent, text);
const LAW = 'e2e = ttft + (output_tokens − 1) · tpot';

const budget = (law) => {
  bars.replaceChildren();
  const all = { ...law.parts, decode: law.decode };
  const line = (label, parts, whole) => {
    P.el('span', {}, bars, label);
    const bar = P.el('div', { class: 'bar', 'aria-hidden': 'true' }, bars);
    for (const name in parts) if (parts[name] > 0 && Number.isFinite(whole)) P.el('span', { class: 's-' + name, title: `${NAMES[name]}: ${P.ms(parts[name])}` }, bar).style.width = parts[name] / whole * 100 + '%';
    P.el('span', { class: 'total' }, bars, Number.isFinite(whole) ? P.ms(Object.values(parts).reduce((a, b) => a + b, 0)) : 'grows without end');
  };
  line('ttft', law.parts, law.e2e);
  line('e2e', all, law.e2e);
};
const say = (v, law) => {
  answer.replaceChildren();
  if (!law.stable) { answer.append(`At ${P.number(v.rate)} requests a second the ${v.slots} slots are not enough (utilisation ${P.number(law.use * 100, 3)} %): the queue grows without end.`); return; }
  const all = { ...law.parts, decode: law.decode };
  const most = Object.keys(all).reduce((a, b) => all[a] >= all[b] ? a : b);
  answer.append('TTFT ');
  figure(answer, P.ms(law.ttft), 'ttft = ingress + queue + prefill + hand-off + delivery');
  answer.append(', then ' + P.number(Math.max(v.output - 1, 0), 6) + ' tokens each ');
  figure(answer, P.ms(law.tpot), 'tpot');
  answer.append(': e2e ');
  figure(answer, P.number(law.e2e / 1000) + ' s', LAW);
  answer.append(`. ${NAMES[most][0].toUpperCase() + NAMES[most].slice(1)} dominates with ${P.number(all[most] / law.e2e * 100, 3)} % of it; ${P.number(law.use * v.slots, 3)} requests are out at once (Little: rate × time held).`);
};
const sayLimits = (v, law) => {
  limits.replaceChildren();
  const list = P.el('ul', {}, limits);
  const broken = [law.ttft > v.slo_ttft && `ttft ${P.ms(law.ttft)} > ${P.ms(v.slo_ttft)}`, law.tpot > v.slo_tpot && `tpot ${P.ms(law.tpot)} > ${P.ms(v.slo_tpot)}`, law.e2e > v.slo_e2e && `e2e ${P.ms(law.e2e)} > ${P.ms(v.slo_e2e)}`].filter(Boolean);
  const verdict = P.el('li', {}, list);
  P.el('span', { class: 'pill ' + (law.stable && !broken.length ? 'met' : 'missed') }, verdict, law.stable && !broken.length ? '✓ kept' : '✗ broken');
  verdict.append(!law.stable ? 'the load is more than it can carry' : broken.length ? broken.join('; ') : 'every limit holds');
  for (const [knob, words, unit, most] of [['input', 'input length', 'tokens', 1e6], ['output', 'output length', 'tokens', 1e6], ['rate', 'rate', 'requests a second', 1e4]]) {
    const at = P.breaks(v, knob, most);
    P.el('li', {}, list, at === null ? `${words}: broken at any ${words}` : at === Infinity ? `${words}: never breaks it` : `${words}: breaks beyond ${P.number(at, knob === 'rate' ? 3 : 6)} ${unit}`);
  }
};

const lengths = (from, to, count) => Array.from({ length: count }, (_, i) => Math.round(from * (to / from) ** (i / (count - 1))));
const curve = (v) => {
  const most = Math.max(256, v.output * 2.5), x = Array.from({ length: 60 }, (_, i) => Math.max(1, Math.round(most * i / 59)));
  const at = x.map((output) => P.law({ ...v, output }));
  const real = (ms) => Number.isFinite(ms) ? +(ms / 1000).toPrecision(5) : null;
  return {
    title: 'End to end against output length', summary: 'The wait for the first token, then decode token by token.',
    x: { label: 'output tokens' }, y: { label: 'time', unit: 's', zero: true },
    series: [{ name: 'e2e', kind: 'line', x, y: at.map((l) => real(l.e2e)) }, { name: 'ttft', kind: 'line', tone: 1, dash: 1, x, y: at.map((l) => real(l.ttft)) }],
    marks: [{ axis: 'y', at: v.slo_e2e / 1000, label: 'e2e limit' }, { axis: 'x', at: v.output, label: 'here' }],
  };
};
const map = document.getElementById('explore-map');
const region = (v) => {
  map.replaceChildren();
  const width = map.clientWidth || 560, height = Math.min(340, width * 0.62), box = { left: 58, right: width - 12, top: 8, bottom: height - 42 };
  const svg = P.svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'Which term dominates at each input and output length; dimmed where the SLO breaks' }, map);
  const xs = lengths(16, 32768, 34), ys = lengths(1, 8192, 26);
  const w = (box.right - box.left) / xs.length, h = (box.bottom - box.top) / ys.length;
  xs.forEach((input, i) => ys.forEach((output, j) => {
    const own = { ...v, input, output }, law = P.law(own), all = { ...law.parts, decode: law.decode };
    const most = Object.keys(all).reduce((a, b) => all[a] >= all[b] ? a : b);
    const cell = P.svg('rect', { x: box.left + i * w, y: box.bottom - (j + 1) * h, width: w + 0.4, height: h + 0.4, class: law.stable ? 'f-' + most : 'f-never' }, svg);
    if (!keeps(own, law)) cell.setAttribute('opacity', '0.32');
  }));
  const x = P.scale(16, 32768, box.left, box.right, true), y = P.scale(1, 8192, box.bottom, box.top, true);
  for (const at of [16, 128, 1024, 8192]) P.svg('text', { class: 'tick', x: x(at), y: box.bottom + 16, 'text-anchor': 'middle' }, svg, P.number(at));
  for (const at of [1, 10, 100, 1000]) P.svg('text', { class: 'tick', x: box.left - 6, y: y(at) + 4, 'text-anchor': 'end' }, svg, P.number(at));
  P.svg('text', { class: 'label', x: (box.left + box.right) / 2, y: box.bottom + 35, 'text-anchor': 'middle' }, svg, 'input tokens');
  P.svg('text', { class: 'label', transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, svg, 'output tokens');
  P.svg('circle', { cx: x(Math.max(16, Math.min(v.input, 32768))), cy: y(Math.max(1, Math.min(v.output, 8192))), r: 6, class: 'here' }, svg);
};
const picture = document.getElementById('explore-picture');
const draw = (v, law) => {
  picture.replaceChildren();
  const svg = P.svg('svg', { viewBox: '0 0 900 250', role: 'img', 'aria-label': `Prefill reads ${v.input} input tokens at once and builds the KV state; decode adds ${v.output} tokens one by one; the budget joins them.` }, picture);
  const text = (x, y, words, attributes = {}) => P.svg('text', { x, y, 'font-size': 15, ...attributes }, svg, words);
  text(10, 20, 'Prefill builds the state', { 'font-weight': 600 });
  const cells = Math.max(6, Math.min(60, Math.round(Math.log2(v.input + 1) * 5)));
  for (let i = 0; i < cells; i++) P.svg('rect', { x: 10 + (i % 15) * 17, y: 32 + Math.floor(i / 15) * 17, width: 14, height: 14, rx: 2, class: 'f-prefill' }, svg);
  text(10, 124, `${P.number(v.input, 6)} prompt tokens, one pass: ${P.ms(law.parts.prefill)}`);
  P.svg('path', { d: 'M280 66h40m-8-6l8 6l-8 6', class: 'arrow' }, svg);
  text(340, 20, 'KV cache: the state that both share', { 'font-weight': 600 });
  const kept = Math.min(36, Math.round(cells * 0.6)), grown = Math.max(1, Math.min(24, Math.round(Math.log2(v.output + 1) * 2)));
  for (let i = 0; i < kept + grown; i++) P.svg('rect', { x: 340 + (i % 12) * 17, y: 32 + Math.floor(i / 12) * 17, width: 14, height: 14, rx: 2, class: i < kept ? 'f-prefill' : 'f-decode' }, svg);
  P.svg('path', { d: 'M560 66h40m-8-6l8 6l-8 6', class: 'arrow' }, svg);
  text(620, 20, 'Decode goes token by token', { 'font-weight': 600 });
  for (let i = 0; i < Math.min(14, v.output); i++) {
    P.svg('rect', { x: 620 + i * 19, y: 44, width: 14, height: 14, rx: 2, class: i ? 'f-decode' : 'f-first_token' }, svg);
    if (i) P.svg('path', { d: `M${618 + i * 19} 66a9 7 0 0 1 -17 0`, class: 'arrow thin' }, svg);
  }
  text(620, 92, `${P.number(v.output, 6)} tokens, each reads the whole state`);
  text(620, 110, `and adds one: ${P.ms(law.tpot)} a token`);
  text(10, 170, 'The budget joins them', { 'font-weight': 600 });
  const all = { ...law.parts, decode: law.decode };
  let at = 10;
  if (law.stable) for (const name in all) {
    const wide = all[name] / law.e2e * 880;
    if (wide > 0) P.svg('rect', { x: at, y: 182, width: wide, height: 26, class: 'f-' + name }, svg);
    at += wide;
  }
  const first = law.stable ? 10 + law.ttft / law.e2e * 880 : 10;
  P.svg('path', { d: `M${first} 176v40`, class: 'arrow' }, svg);
  text(Math.max(10, Math.min(first - 4, 700)), 232, law.stable ? `first token, ${P.ms(law.ttft)}` : 'the queue grows without end', { 'text-anchor': first > 300 ? 'end' : 'start' });
  if (law.stable) text(890, 232, `last token, ${P.ms(law.e2e)}`, { 'text-anchor': 'end' });
};

let chart = null;
const update = () => {
  const law = P.law(state);
  budget(law);
  say(state, law);
  sayLimits(state, law);
  draw(state, law);
  region(state);
  if (chart) chart.replace(curve(state)); else chart = P.chart(document.getElementById('explore-curve'), curve(state));
};
const set = (knob, value) => {
  if (!Number.isFinite(value)) return;
  const own = inputs.get(knob);
  state[knob] = Math.max(+own.min, value);
  own.value = state[knob];
  if (ranges.has(knob)) ranges.get(knob).value = toRange(knob, state[knob]);
  requestAnimationFrame(update);
};
inputs.forEach((one, knob) => {
  one.value = state[knob];
  one.addEventListener('change', () => set(knob, +one.value));
});
ranges.forEach((one, knob) => {
  one.value = toRange(knob, state[knob]);
  one.addEventListener('input', () => set(knob, fromRange(knob, +one.value)));
});
document.getElementById('explore-reset').addEventListener('click', () => Object.entries(told.start).forEach(([knob, value]) => set(knob, value)));
let size = map.clientWidth;
new ResizeObserver(() => { if (map.clientWidth !== size) { size = map.clientWidth; region(state); } }).observe(map);
update();
})();
