// The page of `ostinato watch`: asks for what was added to the logs, and draws it again.

import { get } from "./api.js";
import { el, table, scrolled, heat, lineColour, percent } from "./dom.js";
import { chart } from "./chart.js";
import { save } from "./png.js";

const $ = (id) => document.getElementById(id);
const EVERY_MS = 2000;
const LINES = [
  ["loss", "Loss", "nats a label, training", (point) => point.loss],
  ["dev", "Loss of evaluations", "nats a label", null],
  ["lr", "Learning rate", "learning rate", (point) => point.lr],
  ["norm", "Norm of the gradient", "norm", (point) => point.grad_norm],
  ["speed", "Tokens a second", "labels a second", null],
];
const PANELS = [...LINES.map(([id, title]) => [id, title]), ["load", "Load of experts"], ["depth", "Tokens by rounds"]];
const known = new Map();
const hidden = new Set();

function fresh(name) {
  return { name, place: {}, training: new Map(), evaluations: [], speeds: new Map(), number: known.get(name)?.number ?? known.size };
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const total = Math.round(seconds);
  const [h, m, s] = [Math.floor(total / 3600), Math.floor(total / 60) % 60, total % 60];
  return h ? `${h}:${String(m).padStart(2, "0")}:${String(s).padStart(2, "0")}` : `${m}:${String(s).padStart(2, "0")}`;
}

async function ask(name) {
  let own = known.get(name);
  for (;;) {
    const found = await get("/api/metrics", { run: name, ...own.place });
    if (found.again) {
      own = fresh(name);
      known.set(name, own);
      if (found.metrics === 0 && found.timings === 0) return found.run;
      continue;
    }
    own.place = { metrics: found.metrics, metrics_mark: found.metrics_mark, timings: found.timings, timings_mark: found.timings_mark };
    for (const point of found.training) own.training.set(point.update, point);
    for (const point of found.evaluations) own.evaluations.push(point);
    for (const [update, speed] of Object.entries(found.speeds)) own.speeds.set(Number(update), speed);
    if (!found.more) return found.run;
  }
}

function smoothed(points) {
  const n = Math.max(1, Number($("smooth").value) || 1);
  return points.map(([x], i) => {
    const part = points.slice(Math.max(0, i - n + 1), i + 1);
    return [x, part.reduce((sum, p) => sum + p[1], 0) / part.length];
  });
}

function seriesOf(id, pick) {
  return [...known.values()].filter((own) => !hidden.has(own.name)).map((own) => {
    let points;
    if (id === "dev") points = own.evaluations.filter((one) => "loss" in one.scores).map((one) => [one.update, one.scores.loss]);
    else if (id === "speed") points = smoothed([...own.speeds].sort((a, b) => a[0] - b[0]));
    else points = smoothed([...own.training.values()].map((point) => [point.update, pick(point)]).filter((p) => p[1] !== null));
    return { name: own.name, number: own.number, points };
  }).filter((one) => one.points.length);
}

function shares(id) {
  return [...known.values()].filter((own) => !hidden.has(own.name) && own.training.size).flatMap((own) => {
    const last = [...own.training.values()].pop();
    const groups = Object.entries(id === "load" ? last.load : last.depth);
    if (!groups.length) return [];
    const n = Math.max(...groups.map(([, values]) => values.length));
    const rows = groups.map(([name, values]) => {
      const total = values.reduce((sum, value) => sum + value, 0) || 1;
      return el("tr", {}, el("th", { scope: "row" }, name), Array.from({ length: n }, (_, i) => (i < values.length
        ? heat(el("td", { title: percent(values[i] / total) }, Math.round((100 * values[i]) / total)), values[i] / total) : el("td", {}, ""))));
    });
    const words = id === "load" ? "percent of the choices by expert" : "percent of the tokens by rounds";
    const first = id === "load" ? 0 : 1;
    return [scrolled(`${own.name}: ${words}`, table(`${own.name}, update ${last.update}: ${words}.`, ["", ...Array.from({ length: n }, (_, i) => i + first)], rows))];
  });
}

function draw() {
  for (const [id, title, yName, pick] of LINES) {
    const series = seriesOf(id, pick);
    $(id).classList.toggle("hidden", !series.length);
    const last = series.map((one) => `${one.name} ${one.points[one.points.length - 1][1].toPrecision(4)}`).join(", ");
    $(id).querySelector(".pair").replaceChildren(chart(`${title}; last: ${last}`, "update", yName, series));
  }
  for (const id of ["load", "depth"]) {
    const parts = shares(id);
    $(id).classList.toggle("hidden", !parts.length);
    $(id).querySelector(".pair").replaceChildren(...parts);
  }
}

function list(runs) {
  const rows = runs.map((run) => {
    const own = known.get(run.name);
    const box = el("input", { type: "checkbox", "aria-label": `show ${run.name}`, checked: !hidden.has(run.name) });
    box.addEventListener("change", () => { if (box.checked) hidden.delete(run.name); else hidden.add(run.name); draw(); });
    const key = el("span", { class: "key" }, "━ ");
    key.style.color = lineColour(own.number);
    const last = [...own.training.values()].pop();
    const speed = own.speeds.get(run.update);
    const state = { waiting: "not begun", begun: run.age > 120 ? "silent" : "training", finished: "finished" }[run.state];
    return el("tr", {}, el("td", {}, box), el("th", { scope: "row" }, key, run.name), el("td", {}, state),
      el("td", {}, run.n_updates ? `${run.update} of ${run.n_updates}` : run.update), el("td", {}, duration(run.left)),
      el("td", {}, last?.loss?.toFixed(4) ?? "–"), el("td", {}, speed ? Math.round(speed).toLocaleString("en") : "–"),
      el("td", {}, run.age === null ? "–" : `${duration(run.age)} ago`));
  });
  const focused = document.activeElement?.getAttribute("aria-label");
  $("runs").replaceChildren(scrolled("Runs", table("", ["", "run", "state", "updates", "time left", "loss", "tokens/s", "last record"], rows)));
  if (focused) [...$("runs").querySelectorAll("input")].find((box) => box.getAttribute("aria-label") === focused)?.focus();
}

async function follow() {
  try {
    const { runs } = await get("/api/runs");
    for (const run of runs) if (!known.has(run.name)) known.set(run.name, fresh(run.name));
    const now = await Promise.all(runs.map((run) => ask(run.name)));
    list(now);
    draw();
    $("status").textContent = "";
    document.body.dataset.asked = String(Number(document.body.dataset.asked ?? 0) + 1);
    if (now.every((run) => run.state === "finished")) $("status").textContent = "all finished";
  } catch (error) {
    $("status").textContent = error.message;
  }
  setTimeout(follow, EVERY_MS);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (known.size) draw();
}

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
$("smooth").addEventListener("input", draw);
$("panels").append(...PANELS.map(([id, title]) => el("section", { id, class: "hidden", "aria-labelledby": `${id}-title` },
  el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title),
    el("div", { class: "tools" }, el("button", { type: "button", "aria-label": `Save ${title} as PNG`, onclick: () => save($(id), `ostinato-${id}`) }, "PNG"))),
  el("div", { class: "pair" }))));
follow();
