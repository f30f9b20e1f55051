(() => {
'use strict';
const P = (window.phasemeter = { ready: [] });
const NS = 'http://www.w3.org/2000/svg';

P.svg = (name, attributes = {}, parent = null, text = null) => {
  const node = document.createElementNS(NS, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== null) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
};
P.el = (name, attributes = {}, parent = null, text = null) => {
  const node = document.createElement(name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== null) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
};
P.data = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };

P.number = (value, digits = 4) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-5) return value.toPrecision(3).replace(/\.?0+e/, 'e');
  const text = size >= 10 ** digits ? String(Math.round(value)) : value.toPrecision(digits);
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
};
P.ms = (ms) => ms === null || ms === undefined ? '–' : Math.abs(ms) >= 10000 ? P.number(ms / 1000) + ' s' : P.number(ms) + ' ms';

const said = document.getElementById('said');
let quiet = 0;
P.say = (text) => {
  said.textContent = text;
  said.classList.add('on');
  clearTimeout(quiet);
  quiet = setTimeout(() => said.classList.remove('on'), 4000);
};
const byHand = (text) => {
  const box = P.el('textarea', { 'aria-hidden': 'true', class: 'offscreen' }, document.body);
  box.value = text;
  box.select();
  const done = document.execCommand('copy');
  box.remove();
  return done;
};
P.copy = (text) => {
  const told = (done) => P.say(done ? 'Copied: ' + text : 'Could not copy; here it is: ' + text);
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(() => told(true), () => told(byHand(text)));
  else told(byHand(text));
};
document.addEventListener('click', (event) => {
  const number = event.target.closest('[data-copy]');
  if (number) P.copy(number.getAttribute('data-copy'));
});

// One tab stop a table: arrow keys walk its numbers.
const walk = (table) => {
  const rows = [...table.rows].map((row) => [...row.querySelectorAll('.fig')]).filter((row) => row.length);
  const all = rows.flat();
  all.forEach((figure, i) => { figure.tabIndex = i ? -1 : 0; });
  table.addEventListener('keydown', (event) => {
    const y = rows.findIndex((row) => row.includes(document.activeElement));
    if (y < 0) return;
    const x = rows[y].indexOf(document.activeElement);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    const row = rows[y + step[0]];
    const next = row && row[step[0] ? Math.min(x, row.length - 1) : x + step[1]];
    event.preventDefault();
    if (!next) return;
    document.activeElement.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
};
document.querySelectorAll('table').forEach(walk);

const root = document.documentElement, button = document.getElementById('theme');
const order = ['auto', 'light', 'dark'];
const stored = () => { try { return localStorage.getItem('phasemeter-theme'); } catch (refused) { return null; } };
const store = (value) => { try { localStorage.setItem('phasemeter-theme', value); } catch (refused) { /* a page from disk may not */ } };
P.theme = (value) => {
  if (value === 'auto') root.removeAttribute('data-theme'); else root.setAttribute('data-theme', value);
  if (button) button.textContent = 'Theme: ' + value;
  return value;
};
let theme = P.theme(order.includes(stored()) ? stored() : 'auto');
if (button) button.addEventListener('click', () => {
  theme = P.theme(order[(order.indexOf(theme) + 1) % order.length]);
  store(theme);
});

// The navigation shows where one is.
const links = new Map([...document.querySelectorAll('nav a')].map((a) => [a.getAttribute('href').slice(1), a]));
if (links.size && 'IntersectionObserver' in window) {
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    links.forEach((a) => a.removeAttribute('aria-current'));
    const link = links.get(entry.target.id);
    if (link) link.setAttribute('aria-current', 'true');
  }), { rootMargin: '-20% 0px -70% 0px' });
  links.forEach((_, id) => { const part = document.getElementById(id); if (part) seen.observe(part); });
}
// What is folded away on a screen is opened on paper.
let opened = [];
window.addEventListener('beforeprint', () => {
  opened = [...document.querySelectorAll('details.print:not([open])')];
  opened.forEach((one) => { one.open = true; });
});
window.addEventListener('afterprint', () => opened.forEach((one) => { one.open = false; }));
})();
