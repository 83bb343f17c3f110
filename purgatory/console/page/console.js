// The page: takes the service's events and shows them. Every text goes in as a text node; nothing here parses markup.

import { Chart, WINDOW_S, css, number, spark } from "./charts.js";
import { Wheel, span } from "./wheel.js";

const $ = (id) => document.getElementById(id);
const OUTCOMES = ["immediate", "satisfied", "expired", "cancelled", "forced"];
const TAIL = 12; // letters at the end of a key that are always shown
const history = new Map(); // purgatory -> [[t, parked, rate of each outcome ...], ...]
const charts = { parked: new Chart($("chart-parked")), outcomes: new Chart($("chart-outcomes")) };
const wheel = new Wheel($("wheel"));
let lost = null; // the timer that reports a lost connection
let state = null, chosen = decodeURIComponent(location.hash.slice(1)), opened = null, paused = false;

// -- small things

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) name === "class" ? (element.className = value) : element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function say(element, text) { if (element.textContent !== text) element.textContent = text; }

// As many children as there are items, made once and then only filled, so that focus and selection stay.
function fill(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(create());
  items.forEach((item, index) => update(parent.children[index], item, index));
}

function figure(element, value, unit = "", mood = "") {
  element.className = `figure ${mood}`;
  const text = `${value}|${unit}`;
  if (element.dataset.shown === text) return;
  element.dataset.shown = text;
  element.replaceChildren(value, ...(unit ? [make("small", {}, unit)] : []));
}

const worded = (ms) => (ms === null || ms === undefined ? "–" : span(Math.max(0, ms)));
const total = (pick) => state.purgatories.reduce((sum, purgatory) => sum + pick(purgatory), 0);
const rate = (purgatory) => Object.values(purgatory.rates).reduce((a, b) => a + b, 0);

// -- what comes

function remember(t, id, numbers) {
  if (!history.has(id)) history.set(id, []);
  const points = history.get(id);
  points.push([t, ...numbers]);
  while (points.length && points[0][0] < t - WINDOW_S - 5) points.shift();
}

function take(next) {
  state = next;
  for (const purgatory of state.purgatories) remember(state.at, purgatory.id, [purgatory.parked, ...OUTCOMES.map((o) => purgatory.rates[o])]);
  const living = new Set(state.purgatories.map(({ id }) => id));
  for (const id of history.keys()) if (!living.has(id)) history.delete(id);
  show();
}

// The server ends each stream after some seconds. The browser connects again and then gets the history since its last event.
function connect() {
  const events = new EventSource("events");
  events.addEventListener("history", ({ data }) => {
    for (const [t, members] of JSON.parse(data).points) for (const [id, numbers] of Object.entries(members)) remember(t, id, numbers);
  });
  events.addEventListener("state", ({ data }) => { if (!paused) take(JSON.parse(data)); });
  events.onopen = () => { clearTimeout(lost); lost = null; alive(true); };
  events.onerror = () => {
    lost ??= setTimeout(alive, 2000, false);
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

function alive(on) {
  $("live").className = `live ${on ? "on" : "off"}`;
  say($("live").lastElementChild, on ? (paused ? "paused" : "live") : "connection lost, trying again");
}

// -- what is shown

function show() {
  const empty = state.purgatories.length === 0;
  $("empty").hidden = !empty;
  $("main").hidden = empty;
  say($("process"), `process ${state.pid}`);
  document.title = `purgatory, process ${state.pid}`; // workers that share an address take turns in answering
  tiles();
  const current = state.purgatories.find(({ id }) => id === chosen) ?? state.purgatories[0];
  cards(current);
  if (!current) return;
  const points = history.get(current.id) ?? [];
  charts.parked.draw(points.map(([t, parked]) => [t, [parked]]), [{ name: "parked", color: "--parked" }], state.at);
  charts.outcomes.draw(points.map(([t, , ...rates]) => [t, rates]), OUTCOMES.map((name) => ({ name, color: `--${name}` })), state.at);
  $("parked-now").replaceChildren(make("b", {}, number(current.parked)), ` now, under ${number(current.keys)} ${current.keys === 1 ? "key" : "keys"}`);
  legend(current);
  lists(current);
  totals(current);
  feeds(state.feeds);
  gates(state.gates);
  clockwork(state.timers.find(({ id }) => id === current.timer));
}

function tiles() {
  const parked = total(({ parked }) => parked), leaving = total(rate);
  const expired = total(({ rates, normal_rates }) => Math.max(0, rates.expired - normal_rates.expired)); // without normal ends
  const keys = total(({ keys }) => keys), share = leaving ? expired / leaving : 0;
  figure($("t-parked"), number(parked));
  say($("t-parked-more"), `under ${number(keys)} keys in ${state.purgatories.length} ${state.purgatories.length === 1 ? "purgatory" : "purgatories"}`);
  figure($("t-rate"), number(leaving), "/s");
  fill($("t-split"), OUTCOMES, () => make("i"), (bar, outcome) => {
    bar.style.flexGrow = total(({ rates }) => rates[outcome]);
    bar.style.background = css(`--${outcome}`);
    bar.title = outcome;
  });
  figure($("t-expired"), leaving ? number(share * 100) : "–", leaving ? "%" : "", share > 0.5 ? "bad" : share > 0.2 ? "warn" : "");
  const oldest = state.purgatories.flatMap((purgatory) => purgatory.oldest.slice(0, 1).map((first) => [first, purgatory.id]))
    .sort(([a], [b]) => b.age_ms - a.age_ms)[0];
  const [value, unit] = oldest ? worded(oldest[0].age_ms).split(" ") : ["–", ""];
  figure($("t-oldest"), value, unit, oldest && oldest[0].left_ms < -1000 ? "bad" : "");
  say($("t-oldest-more"), oldest ? `${oldest[0].type} in ${oldest[1]}` : "nothing is parked");
  const worst = Math.max(0, ...state.timers.map(({ overdue_ms, batch_ms }) => Math.max(overdue_ms, batch_ms)));
  const dead = state.timers.some(({ reaper }) => reaper && !reaper.alive);
  const late = Math.max(0, ...state.timers.map(({ late_ms }) => late_ms.p99 ?? 0));
  if (dead) figure($("t-reaper"), "dead", "", "bad");
  else if (worst > 1000) figure($("t-reaper"), worded(worst), "behind", "bad");
  else figure($("t-reaper"), state.timers.length ? "on time" : "–", "", state.timers.length ? "good" : "");
  say($("t-reaper-more"), late ? `99% of expiries within ${worded(late)}` : "nothing expired in the last minute");
}

function cards(current) {
  fill($("cards"), state.purgatories, () => {
    const card = make("button", { type: "button", class: "card" }, make("b"), make("span", { class: "count" }), make("span", { class: "muted" }), make("canvas"), make("span", { class: "bar" }, make("i")));
    card.addEventListener("click", () => { chosen = card.dataset.id; window.history.replaceState(null, "", `#${encodeURIComponent(chosen)}`); close(); show(); });
    return card;
  }, (card, purgatory) => {
    const [name, count, more, canvas, bar] = card.children;
    card.dataset.id = purgatory.id;
    card.setAttribute("aria-current", String(purgatory === current));
    say(name, purgatory.id);
    say(count, number(purgatory.parked));
    say(more, `${number(rate(purgatory))}/s completed` + (purgatory.errors ? ` · ${number(purgatory.errors)} errors` : "") + (purgatory.capacity ? ` · limit ${number(purgatory.capacity)}` : ""));
    bar.hidden = !purgatory.capacity;
    bar.firstElementChild.style.width = `${Math.min(100, (100 * purgatory.parked) / (purgatory.capacity || 1))}%`;
    bar.firstElementChild.className = purgatory.parked > 0.8 * purgatory.capacity ? "high" : "";
    spark(canvas, (history.get(purgatory.id) ?? []).map(([, parked]) => parked), "--parked");
  });
}

function legend(current) {
  fill($("legend"), OUTCOMES, () => make("li", {}, make("i"), make("span"), make("b")), (item, outcome) => {
    item.children[0].style.background = css(`--${outcome}`);
    say(item.children[1], outcome);
    say(item.children[2], number(current.rates[outcome]));
  });
}

// A key's beginning gives way and its end stays: so it is shortened in the middle, and `title` has all of it.
function keyCell() {
  const button = make("button", { type: "button", class: "key" }, make("span"), make("span"));
  button.addEventListener("click", () => open(button.dataset.key));
  return make("td", {}, button);
}

function sayKey(button, key) {
  if (button.dataset.key === key) return;
  button.dataset.key = button.title = key;
  const letters = [...key], cut = letters.length > 2 * TAIL ? letters.length - TAIL : letters.length;
  say(button.firstElementChild, letters.slice(0, cut).join(""));
  say(button.lastElementChild, letters.slice(cut).join(""));
}

function lists(current) {
  const most = Math.max(1, ...current.hottest.map(({ entries }) => entries));
  fill($("hottest").tBodies[0], current.hottest, () => {
    const cell = keyCell();
    cell.prepend(make("span", { class: "fill" }));
    return make("tr", {}, cell, make("td", { class: "n" }));
  }, (row, { key, entries }) => {
    sayKey(row.cells[0].lastElementChild, key);
    row.cells[0].firstElementChild.style.width = `${(100 * entries) / most}%`;
    say(row.cells[1], number(entries));
  });
  fill($("oldest").tBodies[0], current.oldest, () => make("tr", {}, keyCell(), make("td"), ...[0, 0, 0].map(() => make("td", { class: "n" }))), (row, { key, type, age_ms, left_ms, checks }) => {
    sayKey(row.cells[0].firstElementChild, key);
    say(row.cells[1], type);
    row.cells[1].title = type;
    say(row.cells[2], worded(age_ms));
    say(row.cells[3], left_ms < -1 ? `${worded(-left_ms)} over` : worded(left_ms));
    row.cells[3].classList.toggle("late", left_ms < -1);
    say(row.cells[4], number(checks));
  });
  $("sampled").hidden = !current.sampled;
  say($("sampled"), `sampled: ${number(current.visited)} of ${number(current.keys)} keys at a time`);
  $("sampled").title = "So that a look costs the same however many keys there are, each walks a part of them and remembers the leaders.";
}

function totals(current) {
  const facts = [["started", current.totals.started], ...OUTCOMES.map((outcome) => [outcome, current.totals[outcome]]),
    ["expired, normal", current.totals.expired_normally], ["cancelled, normal", current.totals.cancelled_normally], ["checks", current.totals.checks],
    ["rejected", current.rejected, "bad"], ["missed checks", current.missed, "bad"], ["callback errors", current.errors, "bad"], ["idle keys", current.idle_keys]];
  fill($("totals"), facts, () => make("div", {}, make("dt"), make("dd")), (fact, [name, value, mood]) => {
    say(fact.children[0], name);
    say(fact.children[1], number(value));
    fact.children[1].className = value && mood ? mood : "";
  });
}

function feeds(all) {
  $("feeds-panel").hidden = all.length === 0;
  fill($("feeds").tBodies[0], all, () => make("tr", {}, ...[0, 0, 0].map(() => make("td")), ...[0, 0, 0, 0, 0, 0, 0].map(() => make("td", { class: "n" }))), (row, { id, is_following, position, lag_events, lag_ms, rates, totals }) => {
    const states = { true: "following", false: "not following", null: "publishes only" };
    const lag = lag_events === null ? "–" : number(lag_events);
    const texts = [id, states[is_following], position ?? "–", worded(lag_ms), lag, number(rates.applied), number(rates.published), number(totals.gaps), number(totals.reconnections), number(totals.skipped)];
    texts.forEach((text, index) => say(row.cells[index], text));
    row.cells[0].title = id;
    row.cells[2].title = position ?? "";
    row.cells[1].classList.toggle("late", is_following === false);
    for (const [index, count] of [[7, totals.gaps], [9, totals.skipped]]) row.cells[index].classList.toggle("late", count > 0);
  });
}

function gates(all) {
  $("gates-panel").hidden = all.length === 0;
  fill($("gates").tBodies[0], all, () => make("tr", {}, make("td"), ...[0, 0, 0, 0, 0, 0, 0].map(() => make("td", { class: "n" }))), (row, { id, in_use, permits, waiting, hold_ms, totals }) => {
    const texts = [id, number(in_use), number(permits), number(waiting), worded(hold_ms), number(totals.granted), number(totals.late), number(totals.full)];
    texts.forEach((text, index) => say(row.cells[index], text));
    row.cells[0].title = id;
    for (const [index, count] of [[6, totals.late], [7, totals.full]]) row.cells[index].classList.toggle("late", count > 0);
  });
}

function clockwork(timer) {
  $("wheel").hidden = $("levels").hidden = $("health").hidden = !timer;
  say($("wheel-name"), timer ? timer.name : "the operations of this purgatory do not expire");
  if (!timer) return;
  timer.paused = paused;
  wheel.show(timer);
  const rows = timer.buckets.map((level, depth) => [depth, timer.tick_ms * timer.wheel_size ** depth, level]).reverse();
  fill($("levels").tBodies[0], rows, () => make("tr", {}, make("td"), make("td", { class: "n" })), (row, [depth, each, level]) => {
    const where = depth === 0 ? " (innermost)" : "";
    say(row.cells[0], `level ${depth}${where}: ${worded(each)} per bucket, ${worded(each * level.length)} per turn`);
    say(row.cells[1], number(level.reduce((a, b) => a + b, 0)));
  });
  const { reaper } = timer;
  const facts = [
    ["Reaper", reaper ? (reaper.alive ? "alive" : "dead") : "driven by hand", reaper ? (reaper.alive ? "good" : "bad") : ""],
    ["Restarts", reaper ? number(reaper.restarts) : "–", reaper && reaper.restarts ? "bad" : ""],
    ["Last went round", reaper ? `${worded(reaper.heartbeat_ms)} ago` : "–", ""],
    ["Next bucket", timer.next_ms === null ? "none" : timer.overdue_ms > 1000 ? `${worded(timer.overdue_ms)} overdue` : `in ${worded(timer.next_ms)}`, timer.overdue_ms > 1000 ? "bad" : ""],
    ["Late, half within", worded(timer.late_ms.p50), ""],
    ["Late, 99% within", worded(timer.late_ms.p99), ""],
    ["Given to the executor", number(timer.handed_over), ""],
    ["This batch runs for", timer.batch_ms ? worded(timer.batch_ms) : "none runs", timer.batch_ms > 1000 ? "bad" : ""],
    ["Expired since the start", number(timer.fired), ""],
    ["Raised", number(timer.failed), timer.failed ? "bad" : ""],
  ];
  fill($("health"), facts, () => make("div", {}, make("dt"), make("dd")), (fact, [name, value, mood]) => {
    say(fact.children[0], name);
    say(fact.children[1], value);
    fact.children[1].className = mood;
  });
}

// -- the operations under a key

function open(key) {
  opened = key;
  $("drawer").hidden = false;
  refresh();
  $("drawer-close").focus();
}

function close() {
  opened = null;
  $("drawer").hidden = true;
}

async function refresh() {
  const current = state?.purgatories.find(({ id }) => id === chosen) ?? state?.purgatories[0];
  if (opened === null || !current) return;
  const asked = opened;
  const answer = await fetch(`api/operations?${new URLSearchParams({ purgatory: current.id, key: asked })}`).catch(() => null);
  if (!answer?.ok || opened !== asked) return;
  const { total: all, operations } = await answer.json();
  say($("drawer-key"), asked);
  say($("drawer-more"), `${number(all)} waiting in ${current.id}` + (operations.length < all ? `; the ${operations.length} that came first are shown` : ""));
  fill($("operations").tBodies[0], operations, () => make("tr", {}, make("td"), make("td", { class: "n" }), make("td", {}, make("div", { class: "left" }, make("span", {}, make("i")), make("b"))), make("td", { class: "n" })), (row, { type, age_ms, left_ms, checks }) => {
    say(row.cells[0], type);
    say(row.cells[1], worded(age_ms));
    const [bar, words] = row.cells[2].firstElementChild.children;
    bar.firstElementChild.style.width = `${left_ms === null ? 0 : left_ms < 0 ? 100 : (100 * left_ms) / Math.max(1, age_ms + left_ms)}%`;
    bar.firstElementChild.className = left_ms < 0 ? "late" : "";
    say(words, left_ms === null ? "–" : left_ms < 0 ? `${worded(-left_ms)} over` : worded(left_ms));
    say(row.cells[3], number(checks));
  });
}

// -- what the visitor does

const themes = ["auto", "light", "dark"], system = window.matchMedia("(prefers-color-scheme: dark)");
let theme = themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto";

function dress() {
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  say($("theme"), `Theme: ${theme}`);
  if (state) show();
}

$("theme").addEventListener("click", () => { theme = themes[(themes.indexOf(theme) + 1) % themes.length]; localStorage.setItem("theme", theme); dress(); });
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  say($("pause"), paused ? "Go on" : "Pause");
  alive(true);
  if (state) show();
});
$("drawer-close").addEventListener("click", close);
document.addEventListener("keydown", ({ key }) => { if (key === "Escape") close(); });
system.addEventListener("change", dress);
window.addEventListener("resize", () => { if (state) show(); });
setInterval(() => { if (!paused) refresh(); }, 1000);
dress();
connect();
