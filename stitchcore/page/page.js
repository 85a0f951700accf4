// Draws the graph of the page and keeps panel, table and search in step with it. Every text from
// the report goes through textContent; the page's policy lets no other way work.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const count = data.names.length;
const { width: WIDTH, height: HEIGHT } = data.node;
const CELL = 640;        // of the index of nodes by place, in pixels of the graph
const DETAIL = 0.35;     // below this scale the whole graph is one picture
const NEAREST = 2.5, PICTURE_PIXELS = 10e6, PAGE = 50, LISTED = 200;
const byId = (name) => document.getElementById(name);
const stage = byId("stage"), canvas = stage.querySelector("canvas"), panel = byId("panel");
const pen = canvas.getContext("2d");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const text = (table, v) => data.strings[table[v]];

// ---- the graph -------------------------------------------------------------------------------
const readers = data.names.map(() => []);
data.inputs.forEach((read, v) => read.forEach((u) => readers[u].push(v)));
const members = data.kernels.map(() => []);
data.kernel.forEach((k, v) => { if (k >= 0) members[k].push(v); });
const rowOf = new Int32Array(count), placeIn = new Int32Array(count);
data.rows.forEach((row, r) => row.forEach((v, i) => { rowOf[v] = r; placeIn[v] = i; }));
const cells = new Map();
for (let v = 0; v < count; v += 1) {
  const name = `${Math.floor(data.x[v] / CELL)},${Math.floor(data.y[v] / CELL)}`;
  if (!cells.has(name)) cells.set(name, []);
  cells.get(name).push(v);
}
const near = (left, top, right, bottom) => {
  const found = [];
  for (let i = Math.floor((left - WIDTH) / CELL); i <= Math.floor(right / CELL); i += 1) {
    for (let j = Math.floor((top - HEIGHT) / CELL); j <= Math.floor(bottom / CELL); j += 1) {
      for (const v of cells.get(`${i},${j}`) || []) {
        if (data.x[v] < right && data.x[v] + WIDTH > left
            && data.y[v] < bottom && data.y[v] + HEIGHT > top) found.push(v);
      }
    }
  }
  return found;
};

// ---- state and colours -----------------------------------------------------------------------
const at = { scale: 1, x: 0, y: 0 };
const chosen = { kernel: -1, node: -1 };
let matches = [], matching = null, picture = null, pending = false, frames = 0;
let wide = 0, high = 0, shown = {};
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  shown = { fills: [], patterns: [] };
  for (const name of ["ink", "muted", "edge", "mark", "node", "sunken", "surface", "strong-line",
    "on-fill", "line"]) shown[name] = value(name);
  for (let i = 0; i < data.patterns[0]; i += 1) shown.fills.push(value(`fill-${i}`));
  shown.patterns = [null, ...["stripes", "dots", "lines"].map(pattern)];
};
const pattern = (kind) => {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const p = tile.getContext("2d");
  p.globalAlpha = 0.5;
  p.strokeStyle = p.fillStyle = shown["on-fill"];
  p.lineWidth = 1.2;
  p.beginPath();
  if (kind === "stripes") { p.moveTo(-2, 10); p.lineTo(10, -2); p.moveTo(-2, 2); p.lineTo(2, -2);
    p.moveTo(6, 10); p.lineTo(10, 6); p.stroke(); }
  if (kind === "dots") { p.arc(4, 4, 1.4, 0, 7); p.fill(); }
  if (kind === "lines") { p.moveTo(0, 4); p.lineTo(8, 4); p.stroke(); }
  return pen.createPattern(tile, "repeat");
};

// ---- drawing: at most what the stage shows, or one picture of everything -----------------------
const faint = (v) => {
  if (matching) return !matching.has(v);
  if (chosen.kernel >= 0) return data.kernel[v] !== chosen.kernel;
  return false;
};
const box = (p, v, scale) => {
  const k = data.kernel[v], x = data.x[v], y = data.y[v];
  p.globalAlpha = faint(v) ? 0.22 : 1;
  p.beginPath();
  p.roundRect(x, y, WIDTH, HEIGHT, 6);
  if (k >= 0) {
    p.fillStyle = shown.fills[k % data.patterns[0]];
    p.fill();
    const over = shown.patterns[Math.floor(k / data.patterns[0]) % data.patterns[1]];
    if (over && scale > 0.2) { p.fillStyle = over; p.fill(); }
  } else {
    p.fillStyle = shown.node;
    p.fill();
    p.strokeStyle = shown["strong-line"];
    p.lineWidth = 1.2;
    p.setLineDash(data.reasons[v] ? [5, 4] : []);
    p.stroke();
    p.setLineDash([]);
  }
};
const fitting = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);
const label = (p, v) => {
  const k = data.kernel[v], plain = k < 0;
  const y = data.y[v] + HEIGHT / 2;
  if (!plain) {  // a plate, so that letters do not stand on a pattern
    p.fillStyle = shown.fills[k % data.patterns[0]];
    p.fillRect(data.x[v] + 5, data.y[v] + 6, WIDTH - 10, HEIGHT - 12);
  }
  p.fillStyle = plain ? shown.ink : shown["on-fill"];
  p.font = "12px ui-sans-serif, system-ui, sans-serif";
  p.textAlign = "left";
  p.fillText(fitting(text(data.ops, v), plain ? 17 : 12), data.x[v] + 9, y);
  if (!plain) {
    p.font = "600 11px ui-sans-serif, system-ui, sans-serif";
    p.textAlign = "right";
    p.fillText(`K${k}`, data.x[v] + WIDTH - 9, y);
  }
};
const edge = (p, u, v) => {
  const x1 = data.x[u] + WIDTH / 2, y1 = data.y[u] + HEIGHT;
  const x2 = data.x[v] + WIDTH / 2, y2 = data.y[v];
  const bend = Math.max(14, Math.min(60, Math.abs(y2 - y1) / 2));
  p.moveTo(x1, y1);
  p.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
};
const long = (u, v) => Math.abs(data.y[v] - data.y[u]) > 400
  || Math.abs(data.x[v] - data.x[u]) > 900;
const lines = (p, nodes, both) => {
  p.beginPath();
  for (const v of nodes) {
    for (const u of data.inputs[v]) if (!long(u, v)) edge(p, u, v);
    if (both) for (const w of readers[v]) if (!long(v, w)) edge(p, v, w);
  }
  p.globalAlpha = chosen.kernel >= 0 || matching ? 0.3 : 0.8;
  p.strokeStyle = shown.edge;
  p.lineWidth = 1.1;
  p.stroke();
};
const paint = () => {
  const most = Math.sqrt(PICTURE_PIXELS / Math.max(1, data.width * data.height));
  const scale = Math.min(DETAIL * Math.max(1, devicePixelRatio), most);
  const made = document.createElement("canvas");
  made.width = Math.max(1, Math.ceil(data.width * scale));
  made.height = Math.max(1, Math.ceil(data.height * scale));
  const p = made.getContext("2d");
  p.scale(scale, scale);
  const all = data.names.keys();
  lines(p, all, false);
  for (let v = 0; v < count; v += 1) box(p, v, scale);
  picture = made;
};
const ring = (v) => {
  pen.globalAlpha = 1;
  pen.strokeStyle = shown.mark;
  pen.lineWidth = 3 / Math.min(1, at.scale);
  pen.beginPath();
  pen.roundRect(data.x[v] - 4, data.y[v] - 4, WIDTH + 8, HEIGHT + 8, 9);
  pen.stroke();
  pen.beginPath();
  for (const u of data.inputs[v]) edge(pen, u, v);
  for (const w of readers[v].slice(0, LISTED)) edge(pen, v, w);
  pen.lineWidth = 1.8 / Math.min(1, at.scale);
  pen.stroke();
};
const map = () => {  // where the stage is, in the corner, once not all is seen
  if (data.width * at.scale <= wide + 1 && data.height * at.scale <= high + 1) return null;
  if (!picture) paint();
  const scale = Math.min(180 / data.width, 120 / data.height);
  const area = { scale, w: data.width * scale, h: data.height * scale, y: 10 };
  area.x = wide - area.w - 10;
  pen.globalAlpha = 0.94;
  pen.fillStyle = shown.surface;
  pen.fillRect(area.x - 5, area.y - 5, area.w + 10, area.h + 10);
  pen.strokeStyle = shown["strong-line"];
  pen.lineWidth = 1;
  pen.strokeRect(area.x - 5, area.y - 5, area.w + 10, area.h + 10);
  pen.globalAlpha = 1;
  pen.drawImage(picture, area.x, area.y, area.w, area.h);
  const left = Math.max(0, -at.x / at.scale), top = Math.max(0, -at.y / at.scale);
  const right = Math.min(data.width, (wide - at.x) / at.scale);
  const bottom = Math.min(data.height, (high - at.y) / at.scale);
  pen.strokeStyle = shown.mark;
  pen.lineWidth = 2;
  pen.strokeRect(area.x + left * scale, area.y + top * scale,
    Math.max(3, (right - left) * scale), Math.max(3, (bottom - top) * scale));
  return area;
};
let corner = null;
const draw = () => {
  pending = false;
  frames += 1;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, wide, high);
  pen.textBaseline = "middle";
  let drawn = 0;
  pen.save();
  pen.translate(at.x, at.y);
  pen.scale(at.scale, at.scale);
  if (at.scale < DETAIL && count > 400) {
    if (!picture) paint();
    pen.drawImage(picture, 0, 0, data.width, data.height);
  } else {
    const left = -at.x / at.scale, top = -at.y / at.scale;
    const seen = near(left, top, left + wide / at.scale, top + high / at.scale);
    lines(pen, seen, true);
    for (const v of seen) {
      box(pen, v, at.scale);
      if (at.scale > 0.45) label(pen, v);
    }
    drawn = seen.length;
  }
  if (chosen.node >= 0) ring(chosen.node);
  pen.restore();
  corner = map();
  canvas.dataset.drawn = drawn;
  canvas.dataset.frames = frames;
};
const redraw = () => {
  if (!pending) { pending = true; requestAnimationFrame(draw); }
};
const repaint = () => { picture = null; redraw(); };

// ---- moving ----------------------------------------------------------------------------------
const least = () => Math.min(1, wide / (data.width + 40), high / (data.height + 60)) * 0.9;
const hold = () => {  // some of the graph stays in sight
  at.scale = Math.max(Math.min(least(), DETAIL), Math.min(NEAREST, at.scale));
  at.x = Math.min(wide * 0.8, Math.max(wide * 0.2 - data.width * at.scale, at.x));
  at.y = Math.min(high * 0.8, Math.max(high * 0.2 - data.height * at.scale, at.y));
};
const fit = () => {
  const bottom = 34;
  at.scale = Math.min(1.2, (wide - 40) / data.width, (high - 40 - bottom) / data.height);
  at.x = (wide - data.width * at.scale) / 2;
  at.y = (high - bottom - data.height * at.scale) / 2;
  redraw();
};
const zoom = (by, x = wide / 2, y = high / 2) => {
  const before = at.scale;
  at.scale = Math.max(Math.min(least(), DETAIL), Math.min(NEAREST, before * by));
  at.x = x - (x - at.x) * at.scale / before;
  at.y = y - (y - at.y) * at.scale / before;
  hold();
  redraw();
};
const glide = (x, y, scale) => {
  const from = { ...at }, began = performance.now();
  const step = (now) => {
    const t = still.matches ? 1 : Math.min(1, (now - began) / 180), s = t * (2 - t);
    at.x = from.x + (x - from.x) * s;
    at.y = from.y + (y - from.y) * s;
    at.scale = from.scale + (scale - from.scale) * s;
    redraw();
    if (t < 1) requestAnimationFrame(step);
  };
  step(began);
};
const locate = (v) => {
  const scale = Math.max(at.scale, 0.7);
  const x = wide / 2 - (data.x[v] + WIDTH / 2) * scale;
  const y = high / 2 - (data.y[v] + HEIGHT / 2) * scale;
  glide(x, y, scale);
};
const visible = (v) => {
  const x = data.x[v] * at.scale + at.x, y = data.y[v] * at.scale + at.y;
  return at.scale > 0.45 && x > 0 && y > 0
    && x + WIDTH * at.scale < wide && y + HEIGHT * at.scale < high - 30;
};

// ---- the panel -------------------------------------------------------------------------------
const make = (name, words, ...children) => {
  const made = document.createElement(name);
  if (words) made.textContent = words;
  made.append(...children);
  return made;
};
const svg = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const swatch = (k) => {
  const made = svg("svg", { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" });
  const over = Math.floor(k / data.patterns[0]) % data.patterns[1];
  made.append(svg("rect", { width: 16, height: 16, rx: 3, class: `fill-${k % data.patterns[0]}` }),
    svg("rect", { width: 16, height: 16, rx: 3, fill: `url(#pattern-${over})` }));
  return made;
};
const nodeButton = (v) => {
  const made = make("button", data.names[v]);
  made.type = "button";
  made.className = "node";
  made.addEventListener("click", () => { choose(v, false); locate(v); });
  return made;
};
const facts = (pairs) => {
  const made = make("dl");
  for (const [name, value] of pairs) made.append(make("dt", name), make("dd", value));
  return made;
};
const folded = (title, words) => {
  const pre = make("pre", words);
  pre.tabIndex = 0;
  return make("details", "", make("summary", title), pre);
};
const show = () => {
  panel.replaceChildren();
  const k = chosen.kernel, v = chosen.node;
  const heading = make("h3");
  heading.tabIndex = -1;
  panel.append(heading);
  if (k < 0 && v < 0) {
    heading.append("Nothing selected");
    const words = "Select an operation, or a kernel in the table: its operations, bytes, times "
      + "and text are shown here.";
    panel.append(make("p", words));
    return;
  }
  if (k < 0) heading.append(data.names[v]);
  else heading.append(swatch(k), `Kernel ${k}`);
  if (v >= 0) showNode(v, k);
  if (k >= 0) showKernel(k);
};
const showNode = (v, k) => {
  const pairs = [["opcode", text(data.ops, v)]];
  if (k >= 0) pairs.unshift(["operation", data.names[v]]);
  if (text(data.written, v)) pairs.push(["in the script", text(data.written, v)]);
  pairs.push(["reads", `${data.inputs[v].length}`], ["read by", `${readers[v].length}`]);
  panel.append(facts(pairs));
  const reason = text(data.reasons, v);
  if (k < 0 && reason) {
    const because = data.meanings[reason];
    panel.append(make("p", `Left as it was, ${reason}${because ? `: ${because}` : ""}.`));
    if (text(data.details, v)) panel.append(make("p", text(data.details, v)));
  } else if (k < 0) panel.append(make("p", "No work of its own: a source, or a view of its input."));
};
const showKernel = (k) => {
  const told = data.kernels[k];
  panel.append(make("p", told.contents), make("p", "", make("code", told.name)), facts(told.facts));
  const list = make("ul");
  for (const v of members[k].slice(0, LISTED)) list.append(make("li", "", nodeButton(v)));
  const more = members[k].length - LISTED;
  if (more > 0) list.append(make("li", `and ${more} more: search, or see the list below`));
  const held = make("details", "", make("summary", `Operations here (${members[k].length})`), list);
  held.open = members[k].length <= 12;
  panel.append(held);
  const source = data.sources[told.name], loops = data.texts[told.name];
  if (loops) panel.append(folded("Loops", loops));
  if (source) panel.append(folded(data.language, source));
};
const said = (words) => { byId("said").textContent = words; };
const spoken = (v) => {
  const k = data.kernel[v], reason = text(data.reasons, v);
  const where = k >= 0 ? `kernel ${k}` : reason ? `left as it was, ${reason}` : "no work";
  return `${data.names[v]}, ${text(data.ops, v)}, ${where}`;
};
const choose = (v, move = true) => {
  chosen.node = v;
  chosen.kernel = v >= 0 ? data.kernel[v] : -1;
  if (v >= 0) {
    said(spoken(v));
    if (move && !visible(v)) locate(v);
  }
  chosenRows();
  show();
  repaint();
};
const chooseKernel = (k) => {
  chosen.kernel = k;
  chosen.node = -1;
  chosenRows();
  show();
  repaint();
  if (!members[k].length) { said(`kernel ${k}`); return; }
  const xs = members[k].map((v) => data.x[v]), ys = members[k].map((v) => data.y[v]);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [w, h] = [Math.max(...xs) - left + WIDTH, Math.max(...ys) - top + HEIGHT];
  const scale = Math.max(least(), Math.min(1, (wide - 80) / w, (high - 110) / h));
  glide((wide - w * scale) / 2 - left * scale, (high - 30 - h * scale) / 2 - top * scale, scale);
  said(`kernel ${k}, ${members[k].length} operations`);
};
const chosenRows = () => {
  for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
  const button = document.querySelector(`button.kernel[data-kernel="${chosen.kernel}"]`);
  if (button) button.closest("tr").classList.add("chosen");
};

// ---- keys and pointers -----------------------------------------------------------------------
const first = () => (matches.length ? matches[0] : (data.rows[0] || [])[0]);
const beside = (v, by) => {
  const row = data.rows[rowOf[v]], next = row[placeIn[v] + by];
  if (next !== undefined) return next;
  const other = data.rows[rowOf[v] + by];
  return other ? other[by > 0 ? 0 : other.length - 1] : v;
};
const KEYS = {
  ArrowRight: (v) => beside(v, 1), ArrowLeft: (v) => beside(v, -1),
  ArrowUp: (v) => (data.inputs[v].length ? data.inputs[v][0] : v),
  ArrowDown: (v) => (readers[v].length ? readers[v][0] : v),
  Home: () => data.rows[0][0],
  End: () => data.rows[data.rows.length - 1][data.rows[data.rows.length - 1].length - 1],
};
stage.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !count) return;
  const { key } = event;
  if (KEYS[key]) choose(chosen.node < 0 ? first() : KEYS[key](chosen.node));
  else if (key === "+" || key === "=") zoom(1.25);
  else if (key === "-") zoom(0.8);
  else if (key === "0") fit();
  else if (key === "Enter" && (chosen.node >= 0 || chosen.kernel >= 0)) panel.querySelector("h3").focus();
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (panel.contains(document.activeElement)) stage.focus();
  else if (chosen.node >= 0 || chosen.kernel >= 0) { choose(-1); said("nothing selected"); }
});
const dragged = { id: -1, x: 0, y: 0, far: 0 };
stage.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  Object.assign(dragged, { id: event.pointerId, x: event.clientX, y: event.clientY, far: 0 });
  stage.setPointerCapture(event.pointerId);
  stage.classList.add("held");
});
stage.addEventListener("pointermove", (event) => {
  if (event.pointerId !== dragged.id) return;
  const x = event.clientX - dragged.x, y = event.clientY - dragged.y;
  Object.assign(dragged, { x: event.clientX, y: event.clientY });
  dragged.far += Math.abs(x) + Math.abs(y);
  at.x += x;
  at.y += y;
  hold();
  redraw();
});
const release = (event) => {
  if (event.pointerId !== dragged.id) return;
  dragged.id = -1;
  stage.classList.remove("held");
  if (dragged.far > 6 || event.type === "pointercancel") return;
  const frame = stage.getBoundingClientRect();
  const x = event.clientX - frame.left - 1, y = event.clientY - frame.top - 1;
  if (corner && x >= corner.x && y <= corner.y + corner.h && y >= corner.y) {
    at.x = wide / 2 - (x - corner.x) / corner.scale * at.scale;
    at.y = high / 2 - (y - corner.y) / corner.scale * at.scale;
    hold();
    redraw();
    return;
  }
  const gx = (x - at.x) / at.scale, gy = (y - at.y) / at.scale;
  const [hit = -1] = near(gx, gy, gx + 0.001, gy + 0.001);
  choose(hit, false);
};
stage.addEventListener("pointerup", release);
stage.addEventListener("pointercancel", release);
stage.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const frame = stage.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.004), event.clientX - frame.left, event.clientY - frame.top);
}, { passive: false });
byId("closer").addEventListener("click", () => zoom(1.4));
byId("wider").addEventListener("click", () => zoom(1 / 1.4));
byId("fit").addEventListener("click", fit);
for (const one of document.querySelectorAll("[data-kernel]")) {
  one.addEventListener("click", () => {
    chooseKernel(Number(one.dataset.kernel));
    byId("graph").scrollIntoView();
    if (one.matches("button")) panel.querySelector("h3").focus({ preventScroll: true });
  });
}

// ---- search and the list ---------------------------------------------------------------------
const list = byId("list"), which = byId("which"), search = byId("search");
let listed = [], from = 0, turn = -1;
const row = (v) => {
  const k = data.kernel[v], reason = text(data.reasons, v);
  const why = k >= 0 ? "" : [reason, text(data.details, v)].filter(Boolean).join(": ");
  const cells = [make("td", "", nodeButton(v)), make("td", text(data.ops, v)),
    make("td", k >= 0 ? `K${k}` : ""), make("td", why)];
  cells[2].className = "n";
  return make("tr", "", ...cells);
};
const fill = () => {
  list.replaceChildren(...listed.slice(from, from + PAGE).map(row));
  const last = Math.min(from + PAGE, listed.length);
  byId("range").textContent = listed.length
    ? `${(from + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of `
      + listed.length.toLocaleString("en") : "none";
  byId("back").disabled = from === 0;
  byId("next").disabled = last >= listed.length;
};
const kinds = { "": () => true, kernel: (v) => data.kernel[v] >= 0,
  left: (v) => data.kernel[v] < 0 && data.reasons[v] > 0 };
const relist = () => {
  listed = [];
  for (let v = 0; v < count; v += 1) {
    if (kinds[which.value](v) && (!matching || matching.has(v))) listed.push(v);
  }
  from = 0;
  fill();
};
const find = () => {
  const words = search.value.trim().toLowerCase();
  const fits = (one) => one.toLowerCase().includes(words);
  const known = data.strings.map(fits);
  matches = [];
  for (let v = 0; words && v < count; v += 1) {
    if (fits(data.names[v]) || known[data.ops[v]] || known[data.reasons[v]]
        || known[data.written[v]]) matches.push(v);
  }
  matching = words ? new Set(matches) : null;
  turn = -1;
  const plural = matches.length === 1 ? "match" : "matches";
  byId("matches").textContent = words ? `${matches.length.toLocaleString("en")} ${plural}` : "";
  relist();
  repaint();
};
search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && matches.length) {
    turn = (turn + (event.shiftKey ? -1 : 1) + matches.length) % matches.length;
    choose(matches[turn], false);
    locate(matches[turn]);
    byId("matches").textContent = `${turn + 1} of ${matches.length.toLocaleString("en")}`;
  }
  if (event.key === "Escape" && search.value) { search.value = ""; find(); event.stopPropagation(); }
});
which.addEventListener("change", relist);
byId("back").addEventListener("click", () => { from = Math.max(0, from - PAGE); fill(); });
byId("next").addEventListener("click", () => { from += PAGE; fill(); });

// ---- begin -----------------------------------------------------------------------------------
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  repaint();
});
let begun = false;
new ResizeObserver(() => {
  wide = stage.clientWidth;
  high = stage.clientHeight;
  if (!begun) { begun = true; fit(); }
  redraw();
}).observe(stage);
readColours();
relist();
show();
})();
