// A panel as a picture: what stands on the page is painted again, box by box and line by line, so that nothing is loaded.

import { themed } from "./dom.js";

function isSeen(colour) {
  return colour && colour !== "transparent" && !/, 0\)$/.test(colour);
}

function pictureOf(drawing) {
  const copy = drawing.cloneNode(true);
  const own = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((part, i) => {
    const style = getComputedStyle(own[i]);
    for (const name of ["fill", "stroke", "stroke-width", "font-size", "font-family"]) part.setAttribute(name, style.getPropertyValue(name));
  });
  const box = drawing.getBoundingClientRect();
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  return image.decode().then(() => [image, box]);
}

// The lines of a text, each with its box: letters in boxes of one top stand on one line.
function linesOf(text) {
  const range = document.createRange();
  const lines = [];
  let at = 0;
  for (const letter of text.data) {
    range.setStart(text, at);
    range.setEnd(text, (at += letter.length));
    const box = range.getClientRects()[0];
    const line = lines.at(-1);
    if (!box || (!box.width && !letter.trim())) continue;  // a blank that is not shown
    if (line?.top === box.top) Object.assign(line, { words: line.words + letter, left: Math.min(line.left, box.left) });
    else lines.push({ words: letter, left: box.left, top: box.top, height: box.height });
  }
  return lines;
}

export async function paint(shown) {
  // Of a copy, in which nothing scrolls (style.css), so that all of a table is in the picture. It is gone before it can be seen.
  const panel = shown.cloneNode(true);
  panel.classList.add("painted");
  shown.after(panel);
  const frame = panel.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  const scale = Math.min(2, 8000 / Math.max(frame.width, frame.height));
  canvas.width = Math.ceil(frame.width * scale);
  canvas.height = Math.ceil(frame.height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.translate(-frame.left, -frame.top);
  pen.fillStyle = themed("panel");
  pen.fillRect(frame.left, frame.top, frame.width, frame.height);
  for (const part of panel.querySelectorAll("*")) {
    const style = getComputedStyle(part);
    if (part.closest("svg, .tools") || !part.checkVisibility()) continue;
    const box = part.getBoundingClientRect();
    if (isSeen(style.backgroundColor)) {
      pen.fillStyle = style.backgroundColor;
      pen.fillRect(box.left, box.top, box.width, box.height);
    }
  }
  const walker = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (!text.data.trim() || text.parentElement.closest("svg, .tools, option") || !text.parentElement.checkVisibility()) continue;
    const style = getComputedStyle(text.parentElement);
    pen.fillStyle = style.color;
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    // Of a text that has its own direction (style.css) the style does not tell it: its first letter does.
    pen.direction = style.unicodeBidi !== "plaintext" ? style.direction
      : /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/u.test(text.data) ? "rtl" : "ltr";
    for (const line of linesOf(text)) pen.fillText(line.words, line.left, line.top + line.height / 2);
  }
  const pictures = [...panel.querySelectorAll("svg")].map(pictureOf);
  panel.remove();
  for (const [image, box] of await Promise.all(pictures)) {
    pen.drawImage(image, box.left, box.top, box.width, box.height);
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export async function save(panel, name) {
  const link = document.createElement("a");
  const blob = await paint(panel);
  const reader = new FileReader();
  reader.onload = () => {
    link.href = reader.result;
    link.download = `${name}.png`;
    link.click();
  };
  reader.readAsDataURL(blob);
}
