// Elements made of text only: whatever data holds, it is never read as HTML.

export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child))));
  return made;
}

export function svg(tag, props = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

function channels(colour) {
  const hex = colour.trim().replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => {
    const x = c / 255;
    return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
}

// Black or white, whichever stands out more: at least 4.58 to 1 on any colour.
function paint(element, rgb) {
  element.style.setProperty("--cell", `rgb(${rgb.map(Math.round).join(",")})`);
  element.style.setProperty("--ink", luminance(rgb) > 0.179 ? "#000" : "#fff");
  return element;
}

export function heat(element, share) {
  const from = channels(themed("panel"));
  const to = channels(themed("heat"));
  const part = Math.min(1, Math.max(0, share)) ** 0.8;
  return paint(element, from.map((c, i) => c + (to[i] - c) * part));
}

// Neighbouring numbers have hues far apart.
const hueOf = (number) => (number * 137.5 + 205) % 360;
const isDark = () => document.documentElement.dataset.theme === "dark";

function fromHsl(hue, saturation, light) {
  const f = (n) => {
    const k = (n + hue / 30) % 12;
    return 255 * (light - saturation * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
  };
  return [f(0), f(8), f(4)];
}

// The same number always has the same colour.
export function kindOf(element, number, strength = 1) {
  return paint(element, fromHsl(hueOf(number), 0.55 * strength, isDark() ? 0.62 : 0.72));
}

// A colour of a line, which stands out from the panel by 4.5 to 1: yellow and green have to be darker than red and blue.
export function lineColour(number) {
  const behind = luminance(channels(themed("panel")));
  const step = isDark() ? 0.03 : -0.03;
  let light = isDark() ? 0.65 : 0.38;
  for (;;) {
    const rgb = fromHsl(hueOf(number), 0.65, light);
    const own = luminance(rgb);
    if ((Math.max(own, behind) + 0.05) / (Math.min(own, behind) + 0.05) >= 4.5) return `rgb(${rgb.map(Math.round).join(",")})`;
    light += step;
  }
}

// A table that scrolls for itself, its caption above it.
export function scrolled(label, [caption, made]) {
  const whole = document.createDocumentFragment();
  if (caption) whole.append(el("p", { class: "quiet small" }, caption));
  made.setAttribute("aria-label", caption || label);
  const region = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, made);
  whole.append(region);
  if (made.querySelector("td[title]")) whole.append(toldBy(region));
  return whole;
}

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// What a cell says to those who point at it is said to those who press it, or move to it by arrow keys, too.
function toldBy(region) {
  const told = el("p", { class: "quiet small told", "aria-live": "polite" });
  let current = null;
  const show = (cell) => {
    if (!cell?.title) return;
    current?.classList.remove("current");
    current = cell;
    cell.classList.add("current");
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    told.textContent = cell.title;
  };
  region.addEventListener("click", (event) => show(event.target.closest("td[title]")));
  region.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    if (!current) {
      show(region.querySelector("td[title]"));
      return;
    }
    const [down, right] = ARROWS[event.key];
    const rows = [...current.closest("tbody").rows];
    const row = rows[rows.indexOf(current.parentElement) + down];
    show(row?.cells[current.cellIndex + right]);
  });
  return told;
}

export function table(caption, heads, rows) {
  return [caption, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows))];
}

export function compact(n) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]]) {
    if (Math.abs(n) >= size) return `${(n / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(n * 100) / 100}`;
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
