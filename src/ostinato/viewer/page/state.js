// What is seen, in the part of the address after "#", which browsers send to nobody. A beam or temperature of null is the run's own.

const NUMBERS = ["index", "threshold", "beam", "temperature", "seed", "head", "step", "n"];

export const state = {
  runs: [], text: null, split: null, index: 0, reads: "output", rounds: {}, stop: "trained", threshold: 0.9, beam: null,
  temperature: null, seed: 0, attention: null, head: 0, step: 0, along: null, n: 50, metric: "",
};

export function read() {
  const found = new URLSearchParams(location.hash.slice(1));
  if (found.has("run")) state.runs = found.getAll("run").slice(0, 2);
  for (const name of ["text", "split", "reads", "stop", "attention", "along", "metric"]) {
    if (found.has(name)) state[name] = found.get(name);
  }
  for (const name of NUMBERS) {
    const value = Number(found.get(name));
    if (found.has(name) && Number.isFinite(value)) state[name] = value;
  }
  for (const [name, value] of found) {
    if (name.startsWith("rounds.") && Number.isInteger(Number(value))) state.rounds[name.slice(7)] = Number(value);
  }
}

export function write() {
  const made = new URLSearchParams();
  for (const run of state.runs) made.append("run", run);
  if (state.text !== null) made.set("text", state.text);
  else if (state.split !== null) {
    made.set("split", state.split);
    made.set("index", state.index);
  }
  for (const [name, own] of [["reads", "output"], ["stop", "trained"], ["beam", null], ["temperature", null], ["seed", 0],
    ["attention", null], ["head", 0], ["step", 0], ["along", null], ["n", 50], ["metric", ""]]) {
    if (state[name] !== own) made.set(name, state[name]);
  }
  if (state.stop !== "trained") made.set("threshold", state.threshold);
  for (const [name, n] of Object.entries(state.rounds)) made.set(`rounds.${name}`, n);
  history.replaceState(null, "", `#${made}`);
}
