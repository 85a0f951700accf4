// Draws what layout.js has placed: what of it is in sight, and moving over it.

const CELL = 640;        // of the index of items by place, in pixels of the graph
const DETAIL = 0.35;     // below this scale the whole graph is one picture
const NEAREST = 2.5, PICTURE_PIXELS = 10e6, PAGE = 50, LISTED = 200;
const byId = (name) => document.getElementById(name);
const stage = byId("stage"), canvas = stage.querySelector("canvas"), panel = byId("panel");
const pen = canvas.getContext("2d");
const still = matchMedia("(prefers-reduced-motion: reduce)");

// ---- the graph -------------------------------------------------------------------------------
const members = data.kernels.map(() => []);
data.kernel.forEach((k, v) => { if (k >= 0) members[k].push(v); });
const byScopes = hasScopes();
let root = grown(!byScopes), scene = null, rowOf = null, placeIn = null, cells = null;
const arrange = () => {  // anew, when a group has been opened or closed
  scene = shownOf(root);
  rowOf = new Int32Array(scene.items.length);
  placeIn = new Int32Array(scene.items.length);
  scene.rows.forEach((row, r) => row.forEach((i, at) => { rowOf[i] = r; placeIn[i] = at; }));
  cells = new Map();
  scene.items.forEach((_, i) => {
    const name = `${Math.floor(scene.x[i] / CELL)},${Math.floor(scene.y[i] / CELL)}`;
    if (!cells.has(name)) cells.set(name, []);
    cells.get(name).push(i);
  });
  canvas.dataset.items = scene.items.length;
};
if (byScopes || count <= FIRST_SHOWN) openSome(root);
arrange();
const near = (left, top, right, bottom) => {
  const found = [];
  for (let i = Math.floor((left - WIDTH) / CELL); i <= Math.floor(right / CELL); i += 1) {
    for (let j = Math.floor((top - HEIGHT) / CELL); j <= Math.floor(bottom / CELL); j += 1) {
      for (const v of cells.get(`${i},${j}`) || []) {
        if (scene.x[v] < right && scene.x[v] + WIDTH > left
            && scene.y[v] < bottom && scene.y[v] + HEIGHT > top) found.push(v);
      }
    }
  }
  return found;
};

// ---- state and colours -----------------------------------------------------------------------
const at = { scale: 1, x: 0, y: 0 };
const chosen = { kernel: -1, item: -1, group: null };
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
const faint = (item) => {
  if (matching) return !item.members.some((v) => matching.has(v));
  if (chosen.kernel < 0) return false;
  return item.kernel !== chosen.kernel && !item.kernels.some(([k]) => k === chosen.kernel);
};
const filled = (p, k, scale) => {
  p.fillStyle = shown.fills[k % data.patterns[0]];
  p.fill();
  const over = shown.patterns[Math.floor(k / data.patterns[0]) % data.patterns[1]];
  if (over && scale > 0.2) { p.fillStyle = over; p.fill(); }
};
const box = (p, i, scale) => {
  const item = scene.items[i], x = scene.x[i], y = scene.y[i];
  p.globalAlpha = faint(item) ? 0.3 : 1;
  if (item.node < 0) {  // a second one behind it: a pile
    p.beginPath();
    p.roundRect(x + 4, y + 4, WIDTH, HEIGHT, 6);
    p.fillStyle = shown.sunken;
    p.fill();
    p.strokeStyle = shown["strong-line"];
    p.lineWidth = 1.2;
    p.stroke();
  }
  p.beginPath();
  p.roundRect(x, y, WIDTH, HEIGHT, 6);
  if (item.kernel >= 0) filled(p, item.kernel, scale);
  else {
    p.fillStyle = shown.node;
    p.fill();
    p.strokeStyle = shown["strong-line"];
    p.lineWidth = 1.2;
    p.setLineDash(item.node >= 0 && data.reasons[item.node] ? [5, 4] : []);
    p.stroke();
    p.setLineDash([]);
    if (item.node < 0) strip(p, item, x, y, scale);
  }
};
const strip = (p, item, x, y, scale) => {  // what part of a group is in which kernel
  let at = x + 6;
  for (const [k, several] of item.kernels.slice(0, 12)) {
    const width = (WIDTH - 12) * several / item.members.length;
    p.beginPath();
    p.rect(at, y + HEIGHT - 9, width, 5);
    filled(p, k, scale);
    at += width;
  }
};
const fitting = (p, words, most, ahead) => {  // cut at its end, or ahead where the end tells more
  let kept = words;
  while (kept.length > 3 && p.measureText(kept).width > most) {
    kept = ahead ? `…${kept.slice(2)}` : `${kept.slice(0, -2)}…`;
  }
  return kept;
};
const label = (p, i) => {
  const item = scene.items[i], k = item.kernel, plain = k < 0, closed = item.node < 0;
  const x = scene.x[i], y = scene.y[i] + HEIGHT / 2 - (closed && plain ? 4 : 0);
  if (!plain) {  // a plate, so that letters do not stand on a pattern
    p.fillStyle = shown.fills[k % data.patterns[0]];
    p.fillRect(x + 5, scene.y[i] + 6, WIDTH - 10, HEIGHT - 12);
  }
  p.fillStyle = plain ? shown.ink : shown["on-fill"];
  p.font = "600 11px ui-sans-serif, system-ui, sans-serif";
  p.textAlign = "right";
  const more = closed ? item.members.length.toLocaleString("en") : plain ? "" : `K${k}`;
  p.fillText(more, x + WIDTH - 9, y);
  const room = WIDTH - 24 - p.measureText(more).width;
  p.font = `${closed ? "600 " : ""}12px ui-sans-serif, system-ui, sans-serif`;
  p.textAlign = "left";
  const words = closed ? pathOf(item.group) : text(data.ops, item.node);
  p.fillText(fitting(p, words, room, closed), x + 9, y);
};
const edge = (p, u, v) => {
  const x1 = scene.x[u] + WIDTH / 2, y1 = scene.y[u] + HEIGHT;
  const x2 = scene.x[v] + WIDTH / 2, y2 = scene.y[v];
  const bend = Math.max(14, Math.min(60, Math.abs(y2 - y1) / 2));
  p.moveTo(x1, y1);
  p.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
};
const long = (u, v) => Math.abs(scene.y[v] - scene.y[u]) > 400
  || Math.abs(scene.x[v] - scene.x[u]) > 900;
const lines = (p, nodes, both) => {
  p.beginPath();
  for (const v of nodes) {
    for (const u of scene.inputs[v]) if (!long(u, v)) edge(p, u, v);
    if (both) for (const w of scene.readers[v]) if (!long(v, w)) edge(p, v, w);
  }
  p.globalAlpha = chosen.kernel >= 0 || matching ? 0.3 : 0.8;
  p.strokeStyle = shown.edge;
  p.lineWidth = 1.1;
  p.stroke();
};
const paint = () => {
  const most = Math.sqrt(PICTURE_PIXELS / Math.max(1, scene.width * scene.height));
  const scale = Math.min(DETAIL * Math.max(1, devicePixelRatio), most);
  const made = document.createElement("canvas");
  made.width = Math.max(1, Math.ceil(scene.width * scale));
  made.height = Math.max(1, Math.ceil(scene.height * scale));
  const p = made.getContext("2d");
  p.scale(scale, scale);
  lines(p, scene.items.keys(), false);
  for (const v of scene.items.keys()) box(p, v, scale);
  picture = made;
};
const ring = (v) => {
  pen.globalAlpha = 1;
  pen.strokeStyle = shown.mark;
  pen.lineWidth = 3 / Math.min(1, at.scale);
  pen.beginPath();
  pen.roundRect(scene.x[v] - 4, scene.y[v] - 4, WIDTH + 8, HEIGHT + 8, 9);
  pen.stroke();
  pen.beginPath();
  for (const u of scene.inputs[v]) edge(pen, u, v);
  for (const w of scene.readers[v].slice(0, LISTED)) edge(pen, v, w);
  pen.lineWidth = 1.8 / Math.min(1, at.scale);
  pen.stroke();
};
const map = () => {  // where the stage is, in the corner, once not all is seen
  if (scene.width * at.scale <= wide + 1 && scene.height * at.scale <= high + 1) return null;
  if (!picture) paint();
  const scale = Math.min(180 / scene.width, 120 / scene.height);
  const area = { scale, w: scene.width * scale, h: scene.height * scale, y: 10 };
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
  const right = Math.min(scene.width, (wide - at.x) / at.scale);
  const bottom = Math.min(scene.height, (high - at.y) / at.scale);
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
  if (at.scale < DETAIL && scene.items.length > 400) {
    if (!picture) paint();
    pen.drawImage(picture, 0, 0, scene.width, scene.height);
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
  if (chosen.item >= 0) ring(chosen.item);
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
const least = () => Math.min(1, wide / (scene.width + 40), high / (scene.height + 60)) * 0.9;
const hold = () => {  // some of the graph stays in sight
  at.scale = Math.max(Math.min(least(), DETAIL), Math.min(NEAREST, at.scale));
  at.x = Math.min(wide * 0.8, Math.max(wide * 0.2 - scene.width * at.scale, at.x));
  at.y = Math.min(high * 0.8, Math.max(high * 0.2 - scene.height * at.scale, at.y));
};
const fit = () => {
  const bottom = 34;
  at.scale = Math.min(1.2, (wide - 40) / scene.width, (high - 40 - bottom) / scene.height);
  at.x = (wide - scene.width * at.scale) / 2;
  at.y = (high - bottom - scene.height * at.scale) / 2;
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
  const x = wide / 2 - (scene.x[v] + WIDTH / 2) * scale;
  const y = high / 2 - (scene.y[v] + HEIGHT / 2) * scale;
  glide(x, y, scale);
};
const visible = (v) => {
  const x = scene.x[v] * at.scale + at.x, y = scene.y[v] * at.scale + at.y;
  return at.scale > 0.45 && x > 0 && y > 0
    && x + WIDTH * at.scale < wide && y + HEIGHT * at.scale < high - 30;
};
