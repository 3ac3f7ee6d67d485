// Requests to this machine's server; a newer request of the same key ends the older one.

const running = new Map();

function signalOf(key) {
  running.get(key)?.abort();
  const controller = new AbortController();
  running.set(key, controller);
  return controller.signal;
}

async function failure(response) {
  try {
    return new Error((await response.json()).error);
  } catch {
    return new Error(`the server answered ${response.status}`);
  }
}

export function abortAll() {
  for (const controller of running.values()) controller.abort();
}

export async function get(path, query = {}, key = null) {
  const response = await fetch(`${path}?${new URLSearchParams(query)}`, { signal: key && signalOf(key) });
  if (!response.ok) throw await failure(response);
  return response.json();
}

function sent(path, body, key) {
  return fetch(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: signalOf(key),
  });
}

export async function post(path, body, key) {
  const response = await sent(path, body, key);
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Calls `each` with every line of a stream; an error line ends it.
export async function stream(path, body, key, each) {
  const response = await sent(path, body, key);
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const found = JSON.parse(line);
      if (found.kind === "error") throw new Error(found.error);
      each(found);
    }
  }
}

export const isAbort = (error) => error.name === "AbortError";
