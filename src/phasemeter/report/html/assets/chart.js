(() => {
'use strict';
const P = window.phasemeter;
const MARGIN = { left: 58, right: 16, top: 10, bottom: 42 };

const finite = (values) => values.filter((v) => v !== null && Number.isFinite(v));
const steps = (low, high, count) => {
  const raw = (high - low) / Math.max(1, count), size = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * size).find((s) => s >= raw) || size * 10;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
};
const decades = (low, high, count) => {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
    for (const f of [1, 2, 5]) { const v = f * 10 ** e; if (v >= low * 0.999 && v <= high * 1.001) found.push(+v.toPrecision(6)); }
  const tens = found.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9);
  if (found.length > count && tens.length >= 2) return tens;
  return found.length >= 2 ? found : steps(low, high, count);
};
P.scale = (low, high, from, to, log) => {
  const a = log ? Math.log10(low) : low, b = log ? Math.log10(high) : high;
  const span = b - a || 1;
  const place = (v) => from + ((log ? Math.log10(Math.max(v, low / 10)) : v) - a) / span * (to - from);
  place.back = (p) => { const v = a + (p - from) / (to - from) * span; return log ? 10 ** v : v; };
  place.ticks = (count) => log ? decades(low, high, count) : steps(low, high, count);
  return place;
};
const extent = (series, axis, keys, log) => {
  const values = finite(series.flatMap((s) => keys.flatMap((key) => s[key] || []))).filter((v) => !log || v > 0);
  let low = axis.min ?? (values.length ? values.reduce((a, b) => Math.min(a, b)) : log ? 1 : 0);
  let high = axis.max ?? (values.length ? values.reduce((a, b) => Math.max(a, b)) : 1);
  if (!log && axis.zero && low > 0) low = 0;
  if (low === high) { low -= log ? low / 2 : Math.abs(low) / 2 || 0.5; high += Math.abs(high) / 2 || 0.5; }
  return [low, high];
};

const path = (x, y, xs, ys, step) => {
  let text = '', pen = false, last = 0;
  xs.forEach((v, i) => {
    if (v === null || ys[i] === null || !Number.isFinite(v)) { pen = false; return; }
    const px = x(v).toFixed(1), py = y(ys[i]).toFixed(1);
    text += !pen ? `M${px} ${py}` : step ? `H${px}V${py}` : `L${px} ${py}`;
    pen = true; last = py;
  });
  return text;
};
const band = (x, y, s) => {
  const there = s.x.map((_, i) => i).filter((i) => s.lo[i] !== null && s.hi[i] !== null);
  if (!there.length) return '';
  const up = there.map((i) => `${x(s.x[i]).toFixed(1)} ${y(s.hi[i]).toFixed(1)}`);
  const down = there.reverse().map((i) => `${x(s.x[i]).toFixed(1)} ${y(s.lo[i]).toFixed(1)}`);
  return `M${up.join('L')}L${down.join('L')}Z`;
};
const SHAPES = ['circle', 'square', 'diamond', 'cross'];
const point = (shape, px, py, r) => {
  if (shape === 'square') return `M${px - r} ${py - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (shape === 'diamond') return `M${px} ${py - r * 1.3}l${r * 1.3} ${r * 1.3}l${-r * 1.3} ${r * 1.3}l${-r * 1.3} ${-r * 1.3}z`;
  if (shape === 'cross') return `M${px - r} ${py - r}l${2 * r} ${2 * r}M${px - r} ${py + r}l${2 * r} ${-2 * r}`;
  return `M${px - r} ${py}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
};

const drawSeries = (g, s, i, x, y, log) => {
  const tone = `c${s.tone ?? i % 8}`;
  if (s.lo && s.kind !== 'errors') P.svg('path', { class: `band ${tone}`, d: band(x, y, s) }, g);
  if (s.kind === 'points') {
    const r = s.x.length > 300 ? 1.6 : 2.6, shape = SHAPES[s.shape || 0];
    let d = '';
    s.x.forEach((v, k) => { if (v !== null && s.y[k] !== null && (!log || v > 0)) d += point(shape, +x(v).toFixed(1), +y(s.y[k]).toFixed(1), s.shape === 3 ? 3.5 : r); });
    P.svg('path', { class: `dots ${tone}${s.shape === 3 ? ' crossed' : ''}`, d }, g);
    return;
  }
  P.svg('path', { class: `line ${tone} dash${s.dash ?? 0}`, d: path(x, y, s.x, s.y, s.kind === 'step') }, g);
  if (s.kind !== 'errors') return;
  s.x.forEach((v, k) => {
    if (s.y[k] === null) return;
    P.svg('path', { class: `dots ${tone}`, d: point(SHAPES[i % 3], x(v), y(s.y[k]), 3.2) }, g);
    for (const bound of s.lo ? [s.lo[k], s.hi[k]] : []) if (bound !== null) P.svg('path', { class: `line thin ${tone}`, d: `M${x(v)} ${y(s.y[k])}V${y(bound)}m-4 0h8` }, g);
  });
};

const axes = (g, spec, x, y, box) => {
  const narrow = box.width < 480;
  for (const v of x.ticks(narrow ? 4 : 8)) {
    P.svg('line', { class: 'grid', x1: x(v), x2: x(v), y1: box.top, y2: box.bottom }, g);
    P.svg('text', { class: 'tick', x: x(v), y: box.bottom + 16, 'text-anchor': 'middle' }, g, P.number(v));
  }
  for (const v of y.ticks(5)) {
    P.svg('line', { class: 'grid', x1: box.left, x2: box.right, y1: y(v), y2: y(v) }, g);
    P.svg('text', { class: 'tick', x: box.left - 6, y: y(v) + 4, 'text-anchor': 'end' }, g, P.number(v));
  }
  const label = (axis) => axis.unit ? `${axis.label}, ${axis.unit}` : axis.label;
  P.svg('text', { class: 'label', x: (box.left + box.right) / 2, y: box.bottom + 35, 'text-anchor': 'middle' }, g, label(spec.x));
  P.svg('text', { class: 'label', transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, g, label(spec.y));
  for (const mark of spec.marks || []) {
    const along = mark.axis === 'x';
    const at = along ? x(mark.at) : y(mark.at);
    if (!Number.isFinite(at) || (along ? at < box.left - 1 || at > box.right + 1 : at < box.top - 1 || at > box.bottom + 1)) continue;
    P.svg('line', { class: 'mark', ...(along ? { x1: at, x2: at, y1: box.top, y2: box.bottom } : { x1: box.left, x2: box.right, y1: at, y2: at }) }, g);
    P.svg('text', { class: 'marked', ...(along ? { x: at + 4, y: box.top + 11 } : { x: box.right - 2, y: at - 4, 'text-anchor': 'end' }) }, g, mark.label);
  }
};

const words = (spec, s, k) => {
  const unit = (axis, v) => P.number(v) + (axis.unit ? ' ' + axis.unit : '');
  let text = `${s.name}: ${spec.y.label} ${unit(spec.y, s.y[k])} at ${spec.x.label} ${unit(spec.x, s.x[k])}`;
  if (s.lo && s.lo[k] !== null && s.hi[k] !== null) text += ` (${s.interval || '95 %'} ${P.number(s.lo[k])} to ${P.number(s.hi[k])})`;
  return text;
};
const nearest = (series, x, y, px, py, shown) => {
  let best = null, found = null;
  series.forEach((s, i) => {
    if (!shown[i] || !s.y) return;
    s.x.forEach((v, k) => {
      if (v === null || s.y[k] === null) return;
      const d = (x(v) - px) ** 2 + (s.kind === 'points' ? 1 : 0.3) * (y(s.y[k]) - py) ** 2;
      if (best === null || d < best) { best = d; found = [s, k]; }
    });
  });
  return best !== null && best < 6000 ? found : null;
};

const legend = (place, spec, shown, redraw) => {
  if (spec.series.length < 2) return;
  const list = P.el('div', { class: 'legend', role: 'group', 'aria-label': 'Series shown' }, place);
  spec.series.forEach((s, i) => {
    const one = P.el('button', { type: 'button', class: 'quiet', 'aria-pressed': String(shown[i]) }, list);
    P.el('span', { class: `key c${s.tone ?? i % 8} ${s.kind === 'points' ? 'dot' : 'dash' + (s.dash ?? 0)}`, 'aria-hidden': 'true' }, one);
    one.append(s.name);
    one.addEventListener('click', () => { shown[i] = !shown[i]; one.setAttribute('aria-pressed', String(shown[i])); redraw(); });
  });
};
const asTable = (place, spec) => {
  const fold = P.el('details', { class: 'numbers' }, place);
  P.el('summary', {}, fold, 'The numbers');
  const cell = (text) => /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  const csv = () => [['series', spec.x.label, spec.y.label, 'low', 'high'].join(','), ...spec.series.flatMap((s) => s.x.map((v, k) =>
    [cell(s.name), v, s.y ? s.y[k] : '', s.lo ? s.lo[k] : '', s.hi ? s.hi[k] : ''].join(',')))].join('\n');
  fold.addEventListener('toggle', () => {
    if (!fold.open || fold.children.length > 1) return;
    const button = P.el('button', { type: 'button', class: 'quiet' }, fold, 'Copy all as CSV');
    button.addEventListener('click', () => P.copy(csv()));
    const region = P.el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': spec.title + ': numbers' }, fold);
    const table = P.el('table', {}, region);
    const head = P.el('tr', {}, P.el('thead', {}, table));
    for (const name of ['series', spec.x.label, spec.y.label, 'interval']) P.el('th', { scope: 'col' }, head, name);
    const body = P.el('tbody', {}, table);
    for (const s of spec.series) {
      const every = Math.max(1, Math.ceil(s.x.length / 40));
      for (let k = 0; k < s.x.length; k += every) {
        const row = P.el('tr', {}, body);
        P.el('th', { scope: 'row' }, row, s.name);
        P.el('td', {}, row, P.number(s.x[k]));
        P.el('td', {}, row, s.y ? P.number(s.y[k]) : '');
        P.el('td', {}, row, s.lo && s.lo[k] !== null ? `${P.number(s.lo[k])} to ${P.number(s.hi[k])}` : '');
      }
    }
  });
};

P.chart = (place, spec) => {
  const shown = spec.series.map(() => true);
  let log = Boolean(spec.x.log), cursor = -1, x, y;
  const hold = P.el('div', { class: 'canvas', role: 'group', tabindex: '0', 'aria-label': `Chart: ${spec.title}. ${spec.summary || ''} Arrow keys read its points.` }, place);
  const svg = P.svg('svg', { 'aria-hidden': 'true', focusable: 'false' }, hold);
  const tip = P.el('div', { class: 'tip', 'aria-hidden': 'true' }, hold);
  const live = P.el('p', { class: 'offscreen', 'aria-live': 'polite' }, place);
  const draw = () => {
    const width = hold.clientWidth || 640, height = Math.max(220, Math.min(320, width * 0.52));
    const box = { width, left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.setAttribute('height', height);
    svg.replaceChildren();
    const series = spec.series.filter((_, i) => shown[i]);
    x = P.scale(...extent(series, spec.x, ['x'], log), box.left, box.right, log);
    y = P.scale(...extent(series, spec.y, ['y', 'lo', 'hi'], spec.y.log), box.bottom, box.top, spec.y.log);
    axes(svg, spec, x, y, box);
    spec.series.forEach((s, i) => { if (shown[i]) drawSeries(svg, s, i, x, y, log); });
    P.svg('circle', { class: 'cursor', r: 5, cx: -20, cy: -20 }, svg);
  };
  const point_at = (found) => {
    const dot = svg.querySelector('.cursor');
    if (!found) { tip.classList.remove('on'); dot.setAttribute('cx', -20); return; }
    const [s, k] = found, px = x(s.x[k]), py = y(s.y[k]);
    dot.setAttribute('cx', px); dot.setAttribute('cy', py);
    tip.textContent = words(spec, s, k);
    tip.classList.add('on');
    tip.style.left = Math.max(0, Math.min(px - 90, hold.clientWidth - 230)) + 'px';
    tip.style.top = (py > 70 ? py - 58 : py + 14) + 'px';
  };
  hold.addEventListener('pointermove', (event) => {
    const at = svg.getBoundingClientRect();
    point_at(nearest(spec.series, x, y, event.clientX - at.left, event.clientY - at.top, shown));
  });
  hold.addEventListener('pointerleave', () => point_at(null));
  hold.addEventListener('keydown', (event) => {
    const all = spec.series.flatMap((s, i) => shown[i] && s.y ? s.x.map((_, k) => [s, k]).filter(([, k]) => s.y[k] !== null) : []);
    const jump = Math.max(1, Math.round(all.length / 40));
    const step = { ArrowRight: jump, ArrowLeft: -jump, Home: -all.length, End: all.length }[event.key];
    if (!step || !all.length) return;
    event.preventDefault();
    cursor = Math.max(0, Math.min(all.length - 1, cursor + step));
    point_at(all[cursor]);
    live.textContent = tip.textContent;
  });
  hold.addEventListener('blur', () => point_at(null));
  const tools = P.el('div', { class: 'tools' }, place);
  legend(tools, spec, shown, draw);
  if (spec.x.loggable) {
    const toggle = P.el('button', { type: 'button', class: 'quiet choice', 'aria-pressed': String(log) }, tools, 'log scale');
    toggle.addEventListener('click', () => { log = !log; toggle.setAttribute('aria-pressed', String(log)); draw(); });
  }
  asTable(place, spec);
  draw();
  let before = hold.clientWidth;
  new ResizeObserver(() => { if (hold.clientWidth !== before) { before = hold.clientWidth; draw(); } }).observe(hold);
  window.addEventListener('beforeprint', draw);
  return { draw, replace: (next) => { Object.assign(spec, next); draw(); } };
};

document.querySelectorAll('[data-chart]').forEach((place) => P.chart(place, P.data(place.getAttribute('data-chart'))));
})();
