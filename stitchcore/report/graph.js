// Draws the graph of the page: where nodes are, what of them is in sight, and moving over it.
// render.py puts page.js behind it, both in one function.

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
  p.globalAlpha = faint(v) ? 0.3 : 1;
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
