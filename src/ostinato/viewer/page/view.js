// The page of `ostinato view`: controls, requests and panels.

import { abortAll, get, post, stream, isAbort } from "./api.js";
import { el } from "./dom.js";
import * as draw from "./panels.js";
import { save } from "./png.js";
import { state, read, write } from "./state.js";

const $ = (id) => document.getElementById(id);
const PANELS = [
  ["output", "Output"], ["cost", "Cost"], ["depth", "Rounds by token"], ["predictions", "Predictions after every round"],
  ["surprisal", "Surprisal by token"], ["attention", "Attention"], ["experts", "Experts"], ["curve", "Accuracy against cost"],
  ["plan", "Plan"],
];
const seen = { runs: {}, found: {}, streamed: {}, attention: {}, curve: {}, notes: [], query: 0, total: 0, textFor: new Set() };
const info = (name) => seen.runs[name];
const chosen = () => state.runs.map(info);

function say(words, isBad = false) {
  $("status").textContent = words;
  $("status").className = isBad ? "bad" : "";
}

function fail(error) {
  if (!isAbort(error)) say(error.message, true);
}

// What is computed is ended, and what was found cleared, where other things are looked at.
function clear() {
  abortAll();
  Object.assign(seen, { found: {}, streamed: {}, attention: {}, curve: {}, notes: [] });
  PANELS.forEach(([name]) => render(name));
}

// For a request that fails: what an earlier one had found is not shown as the answer to this one.
const forget = (run, ...parts) => (error) => {
  if (!isAbort(error)) {
    for (const part of parts) delete seen[part][run.name];
    PANELS.forEach(([name]) => render(name));
  }
  throw error;
};

// ---- what is asked

function depthOf(run) {
  const asked = { run: run.name };
  const rounds = {};
  for (const stack of run.stacks) {
    const n = state.rounds[stack.name];
    if (stack.varies && n !== undefined && n !== stack.rounds) rounds[stack.name] = Math.min(n, stack.most_rounds * 4);
  }
  if (Object.keys(rounds).length) asked.rounds = rounds;
  if (state.stop === "threshold" && run.stacks.some((stack) => stack.threshold !== null)) asked.threshold = state.threshold;
  else if (run.exits.includes(state.stop)) Object.assign(asked, { exit: state.stop, threshold: state.threshold });
  return asked;
}

function searchOf(run) {
  if (state.temperature > 0) return { temperature: state.temperature, seed: state.seed };
  if (state.beam !== null) return { beam: state.beam };
  return state.temperature === 0 && run.temperature > 0 ? { beam: 1 } : {};
}

function sentenceOf(run) {
  const asked = depthOf(run);
  if (state.text !== null) asked.text = state.text;
  else if (seen.textFor.has(run.name)) asked.text = $("text").value;
  else asked.example = { split: state.split, index: state.index };
  if (run.generates) {
    asked.reads = asked.text !== undefined && !run.prompts ? "output" : state.reads;
    Object.assign(asked, searchOf(run));
  }
  return asked;
}

// ---- requests

async function inspect(run) {
  const asked = sentenceOf(run);
  seen.streamed[run.name] = null;
  if (asked.reads === "output") {
    await stream("/api/generate", asked, `sentence ${run.name}`, (line) => {
      if (line.kind === "output") asked.output_ids = line.output.ids;
      seen.streamed[run.name] = line.kind === "output" ? { text: line.output.text, written: line.output } : { text: line.text };
      seen.found[run.name] = undefined;
      render("output");
    });
  }
  const found = await post("/api/inspect", asked, `sentence ${run.name}`);
  const written = seen.streamed[run.name]?.written;
  if (written && found.output) Object.assign(found.output, { ms: written.ms, finished: written.finished, score: written.score });
  seen.found[run.name] = found;
  PANELS.filter(([name]) => !["attention", "curve", "plan"].includes(name)).forEach(([name]) => render(name));
}

async function update() {
  if (state.text === null && state.split === null) {
    if (!$("text").value.trim()) return;
    state.text = $("text").value;
  }
  write();
  say("…");
  const began = performance.now();
  try {
    await Promise.all(chosen().map((run) => inspect(run).catch(forget(run, "found", "attention")).then(() => look(run))));
    say(`done in ${(performance.now() - began).toFixed(0)} ms`);
    document.body.dataset.done = String(Number(document.body.dataset.done ?? 0) + 1);
  } catch (error) {
    fail(error);
  }
}

function places(run) {
  const stacks = seen.found[run.name]?.stacks ?? [];
  return stacks.flatMap((stack) => stack.attention.map((place) => ({ ...place, stack: stack.name, name: `${stack.name} ${place.kind.replace("_", "-")}` })));
}

async function look(run) {
  const known = places(run);
  const name = known.some((place) => place.name === state.attention) ? state.attention : known[known.length - 1]?.name;
  const own = known.filter((place) => place.name === name);
  const place = own[Math.min(state.step, own.length - 1)];
  seen.attention[run.name] = undefined;
  if (place) {
    const asked = { ...sentenceOf(run), stack: place.stack, step: place.step, kind: place.kind };
    const ids = seen.found[run.name].output?.ids;
    if (asked.reads === "output") asked.output_ids = ids;
    const found = await post("/api/attention", asked, `attention ${run.name}`).catch(forget(run, "attention"));
    seen.attention[run.name] = { place, own, names: [...new Set(known.map((one) => one.name))], found };
  }
  render("attention");
}

async function drawCurve() {
  Object.assign(seen, { curve: {}, notes: [] });
  render("curve");
  const along = $("along").value;
  const metric = metrics().includes(state.metric) ? state.metric : "";
  say("…");
  let problem = null;
  for (const run of chosen()) {
    const points = [];
    const asked = { ...depthOf(run), split: state.split, n: state.n, along };
    if (metric) Object.assign(asked, { metric, ...(run.generates ? searchOf(run) : {}) });
    try {
      await stream("/api/curve", asked, `curve ${run.name}`, (line) => {
        if (line.kind === "point") points.push(line);
        else seen.notes.push(...line.notes.map((note) => `${run.name}: ${note}`));
        Object.assign(seen, { along, metric, curve: { ...seen.curve, [run.name]: points } });
        render("curve");
      });
    } catch (error) {
      if (isAbort(error)) return;
      problem = new Error(`${run.name}: ${error.message}`);
    }
  }
  say("");
  if (problem) fail(problem);
  document.body.dataset.curves = String(Number(document.body.dataset.curves ?? 0) + 1);
}

// ---- panels

function panel([name, title]) {
  const tools = el("div", { class: "tools" },
    el("button", { type: "button", "aria-label": `Copy ${title} as JSON`, onclick: () => copy(JSON.stringify(dataOf(name), null, 1)) }, "JSON"),
    el("button", { type: "button", "aria-label": `Save ${title} as PNG`, onclick: () => save($(name), `ostinato-${name}`).catch(fail) }, "PNG"));
  return el("section", { id: name, "aria-labelledby": `${name}-title` },
    el("div", { class: "head" }, el("h2", { id: `${name}-title` }, title), tools), el("div", { class: "extra" }), el("div", { class: "pair" }));
}

function dataOf(name) {
  const parts = { attention: () => seen.attention, curve: () => seen.curve, plan: () => Object.fromEntries(chosen().map((run) => [run.name, run])) };
  return { address: location.href, data: parts[name] ? parts[name]() : seen.found };
}

function contentOf(name, run) {
  const found = seen.found[run.name];
  if (name === "output") return draw.output(found, seen.streamed[run.name]);
  if (name === "plan") return draw.plan(run);
  if (name === "attention") {
    const own = seen.attention[run.name];
    return own ? draw.attention(own.found, state.head, seen.query, (q) => {
      seen.query = q;
      render("attention");
      $("attention").querySelector(`[data-run="${CSS.escape(run.name)}"] [aria-pressed=true]`).focus();
    }) : [];
  }
  return found ? draw[name](found) : [];
}

function render(name) {
  const section = $(name);
  const pair = section.querySelector(".pair");
  if (name === "curve") {
    pair.className = "pair";
    pair.replaceChildren(...(Object.keys(seen.curve).length ? draw.curve(seen.curve, seen.along, seen.metric) : []),
      ...seen.notes.map((note) => el("p", { class: "quiet" }, note)));
    return;
  }
  const runs = chosen();
  const contents = runs.map((run) => contentOf(name, run));
  section.classList.toggle("hidden", contents.every((content) => !content.length) && !["output", "plan"].includes(name));
  pair.className = runs.length > 1 ? "pair two" : "pair";
  pair.replaceChildren(...runs.map((run, i) => el("div", { "data-run": run.name }, runs.length > 1 ? el("h3", {}, run.name) : null, contents[i])));
  if (name === "attention") attentionTools(section.querySelector(".extra"));
}

function attentionTools(extra) {
  const shown = Object.values(seen.attention).find((one) => one);
  if (!shown) return extra.replaceChildren();
  const { names, own, place, found } = shown;
  // A slider that is dragged is left alone while it stays the same.
  const key = JSON.stringify([names, own.map((one) => [one.step, one.round]), found.weights.length]);
  if (extra.contains(document.activeElement) && extra.dataset.key === key) return undefined;
  extra.dataset.key = key;
  const stepOf = (n) => `${own[n - 1].step + 1}${own.some((one) => one.step !== one.round) ? `, of round ${own[n - 1].round + 1}` : ""}`;
  const again = () => { write(); Promise.all(chosen().map(look)).catch(fail); };
  const choice = el("select", { id: "attention-of", onchange: (event) => { state.attention = event.target.value; again(); } },
    names.map((name) => el("option", { value: name, selected: name === place.name }, name)));
  return replaceIn(extra, el("div", { class: "row" }, el("label", {}, "Attention of", choice),
    slider("attention-step", "step", 1, own.length, 1, Math.min(state.step + 1, own.length), (n) => { state.step = n - 1; again(); }, stepOf),
    slider("attention-head", "head", 1, found.weights.length, 1, Math.min(state.head + 1, found.weights.length), (n) => { state.head = n - 1; write(); render("attention"); })));
}

// What had the focus, keeps it.
function replaceIn(part, ...made) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : null;
  part.replaceChildren(...made);
  if (focused) $(focused)?.focus();
}

function slider(id, name, min, max, step, value, act, show = String) {
  const shown = el("output", { for: id }, show(value));
  const input = el("input", { id, type: "range", min, max, step, value });
  input.addEventListener("input", () => { shown.textContent = show(Number(input.value)); act(Number(input.value)); });
  return el("label", {}, name, input, shown);
}

// ---- controls

let waiting;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(update, 120);
}

function sliders() {
  const runs = chosen();
  const made = [];
  const stacks = new Map(runs.flatMap((run) => run.stacks.filter((stack) => stack.varies).map((stack) => [stack.name, stack])));
  for (const [name, stack] of stacks) {
    made.push(slider(`rounds-${name}`, `Rounds, ${name}`, 1, stack.most_rounds, 1, state.rounds[name] ?? stack.rounds, (n) => { state.rounds[name] = n; soon(); }));
  }
  const stops = ["trained"];
  if (runs.some((run) => run.stacks.some((stack) => stack.threshold !== null))) stops.push("threshold");
  stops.push(...new Set(runs.flatMap((run) => run.exits)));
  if (!stops.includes(state.stop)) state.stop = "trained";
  if (stops.length > 1) {
    const names = { trained: "as the run says", threshold: "another threshold" };
    made.push(el("label", {}, "Tokens stop", el("select", { id: "stop", onchange: (event) => { state.stop = event.target.value; sliders(); soon(); } },
      stops.map((stop) => el("option", { value: stop, selected: stop === state.stop }, names[stop] ?? `by ${stop}`)))));
    if (state.stop !== "trained") made.push(slider("threshold", "Threshold", 0, 1, 0.01, state.threshold, (x) => { state.threshold = x; soon(); }, (x) => x.toFixed(2)));
  }
  if (runs.some((run) => run.generates)) {
    const words = runs[0].prompts ? ["continue it", "read it as it is"] : ["what it writes", "the answer"];
    made.push(el("label", {}, "Reads", el("select", { id: "reads", onchange: (event) => { state.reads = event.target.value; soon(); } },
      ["output", "answer"].map((value, i) => el("option", { value, selected: value === state.reads }, words[i])))));
    made.push(slider("beam", "Beam", 1, Math.max(8, ...runs.map((run) => run.beam)), 1, state.beam ?? runs[0].beam, (n) => { state.beam = n; soon(); }),
      slider("temperature", "Temperature", 0, 2, 0.1, state.temperature ?? runs[0].temperature, (x) => { state.temperature = x; soon(); }, (x) => (x ? x.toFixed(1) : "most probable")));
  }
  replaceIn($("sliders"), ...made);
}

function runChoices() {
  const names = Object.keys(seen.runs);
  const option = (name, own) => el("option", { value: name, selected: name === own }, name || "none");
  $("run-0").replaceChildren(...names.map((name) => option(name, state.runs[0])));
  $("run-1").replaceChildren(...["", ...names].map((name) => option(name, state.runs[1] ?? "")));
  $("run-1").parentElement.classList.toggle("hidden", names.length < 2);
  const splits = info(state.runs[0]).splits;
  if (!splits.includes(state.split)) state.split = splits[0] ?? null;
  for (const part of [$("split").parentElement, document.querySelector(".pager"), $("curve")]) part.classList.toggle("hidden", !splits.length);
  $("split").replaceChildren(...splits.map((name) => option(name, state.split)));
  $("text-label").textContent = info(state.runs[0]).prompts ? "Text, which the model continues or reads" : "Text, which the model reads";
}

async function showExample(index) {
  if (state.split === null) {
    $("about").textContent = "The examples of this run are not on this machine: type a text.";
    return;
  }
  const page = await get("/api/examples", { run: state.runs[0], split: state.split, offset: Math.max(0, index), limit: 1 }, "example");
  seen.total = page.total;
  $("index").max = page.total;
  const [example] = page.examples;
  if (!example) {
    if (page.total) await showExample(page.total - 1);
    return;
  }
  state.text = null;
  state.index = example.index;
  seen.textFor = new Set(await otherRuns(example));
  $("index").value = example.index + 1;
  $("text").value = example.source ?? example.target;
  const columns = Object.entries(example.columns).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`);
  $("about").textContent = [`Example ${example.index + 1} of ${page.total} of ${page.split}.`, example.source === null ? "" : `Answer: ${example.target}`, ...columns].filter(Boolean).join("  ·  ");
}

// Runs whose example of that number is another one, or which have none: they read the text of this one.
async function otherRuns(example) {
  const found = [];
  for (const name of state.runs.slice(1)) {
    try {
      const page = await get("/api/examples", { run: name, split: state.split, offset: example.index, limit: 1 }, `example ${name}`);
      const own = page.examples[0];
      if (own?.source !== example.source || own?.target !== example.target) found.push(name);
    } catch (error) {
      if (isAbort(error)) throw error;
      found.push(name);
    }
  }
  return found;
}

async function pick(index) {
  try {
    await showExample(index);
    await update();
  } catch (error) {
    fail(error);
  }
}

async function copy(words) {
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    const area = el("textarea", {}, words);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("copied");
}

function changeRuns() {
  state.runs = [$("run-0").value, ...($("run-1").value && $("run-1").value !== $("run-0").value ? [$("run-1").value] : [])];
  clear();
  runChoices();
  sliders();
  curveTools();
  $("panels").classList.toggle("wide", state.runs.length < 2);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (Object.keys(seen.runs).length) PANELS.forEach(([name]) => render(name));
}

function listen() {
  $("controls").addEventListener("submit", (event) => { event.preventDefault(); update(); });
  $("text").addEventListener("input", () => { state.text = $("text").value; $("about").textContent = ""; });
  $("text").addEventListener("keydown", (event) => {
    // The Enter that takes what an input method offers is not meant for the page (229: Safari, where composing is over by then).
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) { event.preventDefault(); update(); }
  });
  for (const id of ["run-0", "run-1"]) $(id).addEventListener("change", () => { changeRuns(); if (state.text === null) pick(state.index); else update(); });
  $("split").addEventListener("change", () => { state.split = $("split").value; clear(); pick(0); });
  $("index").addEventListener("change", () => pick(Number($("index").value) - 1));
  $("previous").addEventListener("click", () => pick(Math.max(0, state.index - 1)));
  $("next").addEventListener("click", () => pick(Math.min(seen.total - 1, state.index + 1)));
  $("copy-address").addEventListener("click", () => copy(location.href));
  $("copy-json").addEventListener("click", () => copy(JSON.stringify({ address: location.href, found: seen.found, attention: seen.attention, curve: seen.curve }, null, 1)));
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  // The address holds what is shown: a jump inside the page must not change it.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("output").tabIndex = -1;
    $("output").focus();
  });
  addEventListener("hashchange", () => location.reload());
}

// The metrics of outputs that all chosen runs have.
function metrics() {
  const [first, ...others] = chosen();
  return (first?.metrics ?? []).filter((name) => others.every((run) => run.metrics.includes(name)));
}

function curveTools() {
  const ways = chosen().some((run) => run.stacks.some((stack) => stack.varies)) ? ["rounds", "threshold"] : ["threshold"];
  const along = el("select", { id: "along", onchange: (event) => { state.along = event.target.value; write(); } },
    ways.map((name) => el("option", { value: name, selected: name === state.along }, name)));
  const n = el("input", { id: "n", type: "number", min: 1, max: 200, value: state.n, onchange: (event) => { state.n = Number(event.target.value); write(); } });
  const metric = el("select", { id: "metric", onchange: (event) => { state.metric = event.target.value; write(); } },
    ["", ...metrics()].map((name) => el("option", { value: name, selected: name === state.metric }, name ? `${name} of what is written` : "labels right, teacher-forced")));
  $("curve").querySelector(".extra").replaceChildren(el("div", { class: "row" }, el("label", {}, "score", metric), el("label", {}, "by", along), el("label", {}, "examples", n),
    el("button", { type: "button", id: "draw-curve", onclick: () => { state.along = along.value; drawCurve(); } }, "Draw")));
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  read();
  $("panels").append(...PANELS.map(panel));
  listen();
  try {
    const found = await get("/api/runs");
    seen.runs = Object.fromEntries(found.runs.map((run) => [run.name, run]));
    state.runs = state.runs.filter((name) => name in seen.runs);
    if (!state.runs.length) state.runs = [found.runs[0].name];
    runChoices();
    sliders();
    curveTools();
    $("panels").classList.toggle("wide", state.runs.length < 2);
    render("plan");
    document.body.dataset.ready = "1";
    if (state.text !== null) {
      $("text").value = state.text;
      await update();
    } else await pick(state.index);
  } catch (error) {
    fail(error);
  }
}

start();
