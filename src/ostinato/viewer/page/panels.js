// The panels: from what the server found to elements.

import { el, table, scrolled, heat, kindOf, compact, percent } from "./dom.js";
import { chart } from "./chart.js";

const SHORT = { self_attention: "self-attention", cross_attention: "cross-attention", ffn: "feed-forward" };
const two = (share) => (share >= 0.995 ? "1" : share.toFixed(2).slice(1));

export function output(found, streamed) {
  if (!found && !streamed) return [];
  const parts = [];
  const written = found?.output;
  const words = written ? written.text : streamed?.text;
  if (words !== undefined && words !== null) {
    parts.push(el("p", { class: "out", dir: "auto", "data-output": "" }, words));
    if (written && !written.finished) parts.push(el("p", { class: "quiet" }, "Cut at the length limit."));
  } else if (found) parts.push(el("p", { class: "quiet" }, "This run writes nothing here: see its predictions."));
  if (found?.answer !== null && found?.answer !== undefined) {
    parts.push(el("p", {}, "Answer: ", el("span", { dir: "auto" }, found.answer), found.right === null ? null
      : el("strong", { class: found.right ? "good" : "bad" }, found.right ? "  right" : "  wrong")));
  }
  return parts;
}

export function cost(found) {
  const { macs, macs_full, ms, ms_full } = found.cost;
  const row = (name, now, full, show) => el("tr", {}, el("th", { scope: "row" }, name),
    el("td", {}, show(now)), el("td", {}, show(full)), el("td", {}, full ? percent(now / full) : "–"),
    el("td", { class: "track" }, bar(full ? now / full : 0)));
  const rows = [row("multiply-accumulates", macs, macs_full, compact), row("milliseconds", ms, ms_full, (x) => x.toFixed(1))];
  const parts = [scrolled("Cost", table("One pass over the sentence", ["", "as it ran", "at full depth", "share", ""], rows))];
  if (found.output?.ms) parts.push(el("p", { class: "quiet" }, `Writing the output took ${found.output.ms.toFixed(0)} ms.`));
  return parts;
}

function bar(share) {
  const made = el("div", { class: "bar" });
  made.style.width = `${Math.min(100, 100 * share)}%`;
  return made;
}

export function depth(found) {
  if (!found.stacks.length) return [el("p", { class: "quiet" }, "A recurrence over positions: no rounds of depth.")];
  return found.stacks.flatMap((stack) => {
    if (!stack.halting) {
      return [el("h3", {}, stack.name), el("p", { class: "quiet" }, `No token halts: every token runs all ${stack.rounds} rounds.`)];
    }
    const { probability, remaining, ran } = stack.halting;
    const n = Math.max(stack.rounds, ran[0]?.length ?? 0);
    const rows = stack.tokens.map((token, t) => el("tr", {}, el("th", { scope: "row", title: token.text }, token.text),
      Array.from({ length: n }, (_, r) => {
        if (!ran[t][r]) return el("td", { title: `${token.text}, round ${r + 1}: took no part` }, "–");
        const cell = el("td", { title: `${token.text}, round ${r + 1}: halts with probability ${probability[t][r]}; not halted before: ${remaining[t][r]}` }, two(probability[t][r]));
        return heat(cell, 0.12 + 0.88 * remaining[t][r]);
      }), el("td", {}, token.rounds), el("td", {}, token.depth.toFixed(1))));
    const heads = ["token", ...Array.from({ length: n }, (_, r) => r + 1), "rounds", "depth"];
    return [el("h3", {}, stack.name), scrolled(`Depth of the ${stack.name}`, table(
      "By round: probability to halt; the stronger the colour, the more had not halted before. Depth: where the output comes from.", heads, rows))];
  });
}

export function experts(found) {
  return found.stacks.filter((stack) => stack.experts.length).flatMap((stack) => {
    const heads = ["token", ...stack.experts.map((one) => `${one.router.split(".")[0] === "ffn" ? "F" : one.router.startsWith("cross") ? "C" : "S"}${one.step + 1}`)];
    const rows = stack.tokens.map((token, t) => el("tr", {}, el("th", { scope: "row", title: token.text }, token.text),
      stack.experts.map((one) => {
        if (one.chosen[t] === null) return el("td", { title: "took no part" }, "–");
        const gates = one.chosen[t].map((expert, k) => `expert ${expert}: ${one.gates[t][k]}`).join(", ");
        const cell = el("td", { title: `${token.text}, ${one.router}, step ${one.step + 1}: ${gates}` }, one.chosen[t].join(" "));
        return kindOf(cell, one.chosen[t][0], 0.3 + 0.7 * one.gates[t][0]);
      })));
    return [el("h3", {}, stack.name), scrolled(`Experts of the ${stack.name}`, table(
      "Numbers of the chosen experts, the colour of the first; S: self-attention, C: cross-attention, F: feed-forward, with the step.", heads, rows))];
  });
}

export function predictions(found) {
  const { rounds, labels, ids, probabilities, texts, stack } = found.predictions;
  const columns = found.stacks.find((one) => one.name === stack)?.tokens;
  const rows = labels.map((label, l) => {
    const at = label.column === null ? "sentence" : columns?.[label.column]?.text ?? String(label.column + 1);
    return el("tr", {}, el("th", { scope: "row", title: at }, at), el("td", { class: "left" }, label.text ?? ""),
      rounds.map((round, r) => {
        const best = ids[l][r].map((id, k) => `${texts[id]} ${percent(probabilities[l][r][k])}`);
        const cell = el("td", { title: `${round === "output" ? "output" : `round ${round}`}: ${best.join("; ")}` }, texts[ids[l][r][0]]);
        return heat(cell, 0.9 * probabilities[l][r][0]);
      }));
  });
  return [scrolled("Predictions by round", table(
    "The most probable prediction after every round; the stronger the colour, the more probable. Point at one, press it or move to it by arrow keys for the next best.",
    ["at", "what comes", ...rounds], rows))];
}

export function surprisal(found) {
  const known = found.predictions.labels.filter((label) => label.bits !== null);
  if (!known.length) return [];
  const most = Math.max(1, ...known.map((label) => label.bits));
  const mean = known.reduce((sum, label) => sum + label.bits, 0) / known.length;
  const rows = known.map((label) => el("tr", {}, el("th", { scope: "row" }, label.text), el("td", {}, label.bits.toFixed(2)),
    el("td", { class: "track" }, bar(label.bits / most))));
  return [scrolled("Surprisal", table(`Bits by token, given all before it; mean ${mean.toFixed(2)}.`, ["token", "bits", ""], rows))];
}

export function attention(found, head, query, onQuery) {
  const weights = found.weights[Math.min(head, found.weights.length - 1)];
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Where it looks" });
  const show = (q) => {
    const row = weights[q];
    chips.replaceChildren(...found.keys.map((key, k) => {
      const share = row && row[k] >= 0.05 ? el("small", {}, ` ${Math.round(100 * row[k])} %`) : null;
      const chip = el("span", { class: "chip", title: row ? percent(row[k]) : "took no part" }, key, share);
      return heat(chip, row ? row[k] : 0);
    }));
  };
  const buttons = found.queries.map((token, q) => el("button", {
    type: "button", class: "chip", "aria-pressed": q === query ? "true" : "false",
    onmouseenter: () => show(q), onfocus: () => show(q), onclick: () => onQuery(q),
  }, token));
  const start = Math.min(query, found.queries.length - 1);
  show(start);
  const parts = [
    el("p", { class: "quiet" }, "Point at a token:"), el("div", { class: "chips", role: "group", "aria-label": "Tokens that look" }, buttons),
    el("p", { class: "quiet" }, "It looks at:"), chips,
  ];
  if (found.queries.length * found.keys.length <= 1600) {
    const rows = found.queries.map((token, q) => el("tr", {}, el("th", { scope: "row" }, token), found.keys.map((key, k) => {
      const weight = weights[q]?.[k];
      if (weight === undefined) return el("td", {}, "–");
      return heat(el("td", { title: `${token} looks at ${key}: ${percent(weight)}` }, two(weight)), weight);
    })));
    parts.push(scrolled("Attention weights", table("Weights: a row looks at columns.", ["", ...found.keys], rows)));
  }
  return parts;
}

export function plan(info) {
  const [source, target] = info.macs_lengths;
  return [
    el("p", { class: "quiet" }, `${info.description}. ${compact(info.parameters)} parameters, ${info.checkpoint}. Cells: parameters of the set, and multiply-accumulates of a sentence of ${info.reads === "pair" ? `${source} + ${target}` : target} tokens. The same colour is the same set.`),
    ...info.stacks.flatMap((stack) => {
      const kinds = [...new Set(stack.plan.flatMap((step) => step.cells.map((cell) => cell.kind)))];
      const rows = kinds.map((kind) => el("tr", {}, el("th", { scope: "row" }, SHORT[kind]), stack.plan.map((step) => {
        const cell = step.cells.find((one) => one.kind === kind);
        if (!cell) return el("td", {}, "–");
        const made = el("td", { title: `${cell.set}: ${cell.parameters} parameters, ${cell.macs} multiply-accumulates` }, cell.set.split("_").pop(),
          el("span", { class: "sub" }, compact(cell.parameters)), el("span", { class: "sub" }, compact(cell.macs)));
        return kindOf(made, numberOf(`${kind} ${cell.set}`));
      })));
      const heads = ["step", ...stack.plan.map((step) => (step.loop ? `${step.index + 1}` : `(${step.index + 1})`))];
      return [el("h3", {}, `${stack.name}: ${stack.rounds} rounds, ${stack.halting === "none" ? "no halting" : stack.halting.replace("_", "-")}`),
        scrolled(`Plan of the ${stack.name}`, table("Steps in brackets run once, before or after the rounds.", heads, rows))];
    }),
  ];
}

const sets = new Map();
function numberOf(name) {
  if (!sets.has(name)) sets.set(name, sets.size);
  return sets.get(name);
}

export function curve(byRun, along, metric) {
  const isShare = Object.values(byRun).flat().every((point) => point.is_share);
  const scoreOf = (point) => (metric ? point.score : point.token_accuracy) * (isShare ? 100 : 1);
  const series = Object.entries(byRun).map(([name, points], number) => {
    const here = points.find((point) => point.here);
    const line = points.filter((point) => !point.here).map((point) => [point.macs / 1e6, scoreOf(point)]).sort((a, b) => a[0] - b[0]);
    return { name, number, points: line, here: here && [here.macs / 1e6, scoreOf(here)] };
  });
  const rows = Object.entries(byRun).flatMap(([name, points]) => points.map((point) => el("tr", {},
    el("th", { scope: "row" }, name), el("td", {}, `${point.setting}${point.here ? " (here)" : ""}`), metric ? el("td", {}, isShare ? percent(point.score) : Number(point.score).toPrecision(4)) : null, el("td", {}, percent(point.token_accuracy)),
    el("td", {}, percent(point.sequence_accuracy)), el("td", {}, compact(point.macs)), el("td", {}, percent(point.macs / point.macs_full)))));
  return [
    chart(`Accuracy against cost by ${along}`, "million multiply-accumulates of an example", metric ? `${metric}${isShare ? ", % of a perfect score" : ""}` : "labels right, %", series, { points: true, legend: true }),
    el("details", {}, el("summary", {}, "Numbers"), scrolled("Numbers of the curve", table(
      metric ? `Labels and costs are teacher-forced; ${metric} is of what was written.` : "Teacher-forced.",
      ["run", along, ...(metric ? [metric] : []), "labels right", "all right", "MACs", "of full depth"], rows))),
  ];
}
