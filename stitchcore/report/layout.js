// What of the graph is shown, and where it stands: operations, and groups of them (name scopes, or
// kernels) that are closed. render.py puts graph.js and page.js behind it, all in one function.
//
// Layers run from sources to sinks, folded like the columns of a paper: a training step is deep and
// narrow, a screen is wide. All of it takes time linear in nodes and edges but for sorting.

const data = JSON.parse(document.getElementById("data").textContent);
const count = data.names.length;
const WIDTH = 160, HEIGHT = 34, STEP_X = WIDTH + 14, STEP_Y = HEIGHT + 28, COLUMN_GAP = 72;
const ABREAST = 12;      // items of a layer side by side; further ones stand in rows below
const ASPECT = 1.9;      // width over height that the whole should have
const SWEEPS = 2;
const FIRST_SHOWN = 20;  // items at the start: groups of groups are opened, the largest first
const text = (table, v) => data.strings[table[v]];

// ---- groups: a tree of name scopes, the user's own where the graph still has them --------------
const CALLS = /^(Stateful)?PartitionedCall(_\d+)?$/;  // what inlining puts before a name
const SOURCES = "constants, inputs", OUTSIDE = "without scope";
const named = (v) => {
  const parts = (text(data.written, v) || data.names[v]).split("/");
  return parts.slice(0, -1).filter((part) => part && !CALLS.test(part));
};
const works = (v) => data.kernel[v] >= 0 || data.reasons[v] > 0;
const busy = new Set();  // outermost scopes in which something works
for (let v = 0; v < count; v += 1) if (works(v) && named(v).length) busy.add(named(v)[0]);
const scopesOf = (v, byKernel) => {
  const scopes = named(v);
  if (!works(v) && !busy.has(scopes[0])) return [SOURCES];
  return scopes.length || byKernel || count <= FIRST_SHOWN ? scopes : [OUTSIDE];
};
const hasScopes = () => {  // of half of what does work
  let inside = 0, all = 0;
  for (let v = 0; v < count; v += 1) {
    all += works(v);
    inside += works(v) && named(v).length > 0;
  }
  return 2 * inside >= all;
};
const group = (name, parent, kernel = -1) => ({
  name, parent, kernel, groups: new Map(), nodes: [], size: 0, open: false,
});
const within = (parent, name) => {
  if (!parent.groups.has(name)) parent.groups.set(name, group(name, parent));
  return parent.groups.get(name);
};
const dissolved = (one) => {  // a scope of one operation is that operation
  for (const [name, inner] of one.groups) {
    dissolved(inner);
    if (inner.size > 1 || inner.kernel >= 0) continue;
    one.nodes.push(...inner.nodes);
    one.groups.delete(name);
  }
};
const chained = (one) => {  // a scope that only holds one scope is told with it
  for (const inner of one.groups.values()) chained(inner);
  for (const [name, inner] of one.groups) {
    if (inner.groups.size !== 1 || inner.nodes.length || inner.kernel >= 0) continue;
    const [only] = inner.groups.values();
    only.name = `${inner.name}/${only.name}`;
    only.parent = one;
    one.groups.set(name, only);
  }
};
const grown = (byKernel) => {
  const root = group("", null);
  root.open = true;
  for (let v = 0; v < count; v += 1) {
    const k = data.kernel[v];
    let at = root;
    if (byKernel && k >= 0) {
      at = within(root, `\u0000${k}`);
      at.kernel = k;
      at.name = `Kernel ${k}`;
    } else for (const name of scopesOf(v, byKernel)) at = within(at, name);
    at.nodes.push(v);
  }
  const measure = (one) => {
    one.size = one.nodes.length;
    for (const inner of one.groups.values()) one.size += measure(inner);
    return one.size;
  };
  measure(root);
  dissolved(root);
  chained(root);
  return root;
};
const everyGroup = (one, act) => {
  for (const inner of one.groups.values()) { act(inner); everyGroup(inner, act); }
};
const pathOf = (one) => {
  const inner = one.parent && one.parent.parent;
  return inner ? `${pathOf(one.parent)}/${one.name}` : one.name;
};
const membersOf = (one) => {
  let found = one.nodes;
  everyGroup(one, (inner) => { found = found.concat(inner.nodes); });
  return found;
};
const openSome = (root) => {
  let shown = root.groups.size + root.nodes.length;
  const closed = [...root.groups.values()];
  while (closed.length) {
    closed.sort((a, b) => a.size - b.size);
    const largest = closed.pop(), more = largest.groups.size + largest.nodes.length - 1;
    const few = count <= FIRST_SHOWN;
    if (!few && (shown + more > FIRST_SHOWN || largest.groups.size < 2)) continue;
    largest.open = true;
    shown += more;
    closed.push(...largest.groups.values());
  }
};

// ---- layers ----------------------------------------------------------------------------------
const distances = (inputs) => {  // the edge that closes a loop is not counted
  const far = new Int32Array(inputs.length), after = new Int32Array(inputs.length);
  const state = new Uint8Array(inputs.length);  // 0 new, 1 entered, 2 done
  let finished = 0;
  for (let start = 0; start < inputs.length; start += 1) {
    const stack = [start];
    while (stack.length) {
      const v = stack[stack.length - 1];
      if (state[v] === 0) {
        state[v] = 1;
        for (const u of inputs[v]) if (state[u] === 0) stack.push(u);
        continue;
      }
      stack.pop();
      if (state[v] !== 1) continue;
      for (const u of inputs[v]) if (state[u] === 2) far[v] = Math.max(far[v], far[u] + 1);
      state[v] = 2;
      after[v] = finished;
      finished += 1;
    }
  }
  return [far, after];
};
const layered = (inputs) => {  // a source stands right above its first reader
  const [layers, after] = distances(inputs);
  const nearest = inputs.map(() => Infinity);
  inputs.forEach((read, v) => {
    for (const u of read) if (after[v] > after[u]) nearest[u] = Math.min(nearest[u], layers[v]);
  });
  inputs.forEach((read, v) => {
    if (!read.length && nearest[v] < Infinity) layers[v] = Math.max(layers[v], nearest[v] - 1);
  });
  return layers;
};
const ordered = (inputs, readers, layers) => {  // barycentres (Sugiyama, Tagawa, Toda)
  const most = layers.reduce((one, other) => Math.max(one, other), -1);
  const members = Array.from({ length: most + 1 }, () => []);
  layers.forEach((layer, v) => members[layer].push(v));
  const place = new Float64Array(inputs.length);
  const settle = (layer) => layer.forEach((v, i) => { place[v] = i - (layer.length - 1) / 2; });
  members.forEach(settle);
  for (let sweep = 0; sweep < 2 * SWEEPS; sweep += 1) {
    const joined = sweep % 2 ? readers : inputs;
    for (const layer of sweep % 2 ? [...members].reverse() : members) {
      const key = new Map(layer.map((v) => [v, joined[v].length
        ? joined[v].reduce((sum, u) => sum + place[u], 0) / joined[v].length : place[v]]));
      layer.sort((a, b) => key.get(a) - key.get(b));
      settle(layer);
    }
  }
  return members;
};
const columnsOf = (widths, starts) => {  // a column ends with a layer where one ends soon enough
  const mean = widths.reduce((sum, width) => sum + width, 0) / (widths.length || 1);
  const wide = widths.reduce((one, other) => Math.max(one, other), 0) + 1;
  const columns = Math.max(1, Math.sqrt(ASPECT * widths.length * STEP_Y
    / ((mean + wide) / 2 * STEP_X)));
  const high = Math.max(4, Math.ceil(widths.length / columns));
  const ranges = [];
  let first = 0;
  for (let row = 1; row < widths.length; row += 1) {
    const full = row - first >= high && starts.has(row);
    if (full || row - first >= high + Math.ceil(high / 12)) {
      ranges.push([first, row]);
      first = row;
    }
  }
  return widths.length ? [...ranges, [first, widths.length]] : [];
};
const placed = (inputs, readers) => {
  const rows = [], starts = new Set();
  for (const layer of ordered(inputs, readers, layered(inputs))) {
    starts.add(rows.length);
    const lines = Math.ceil(layer.length / ABREAST);
    for (let line = 0; line < lines; line += 1) {
      rows.push(layer.filter((_, i) => i % lines === line));
    }
  }
  const x = new Float64Array(inputs.length), y = new Float64Array(inputs.length);
  let left = 0, width = 0, height = 0;
  for (const [first, last] of columnsOf(rows.map((row) => row.length), starts)) {
    const widest = Math.max(...rows.slice(first, last).map((row) => row.length));
    for (let number = first; number < last; number += 1) {
      const indent = left + (widest - rows[number].length) * STEP_X / 2;
      rows[number].forEach((v, i) => {
        x[v] = indent + i * STEP_X;
        y[v] = (number - first) * STEP_Y;
      });
    }
    width = left + widest * STEP_X - (STEP_X - WIDTH);
    left = width + COLUMN_GAP;
    height = Math.max(height, (last - first) * STEP_Y - (STEP_Y - HEIGHT));
  }
  return { rows, x, y, width, height };
};

// ---- what is shown: an item is an operation, or a closed group ---------------------------------
const shownOf = (root) => {
  const items = [], itemOf = new Int32Array(count);
  const add = (item) => {
    for (const v of item.members) itemOf[v] = items.length;
    items.push(item);
  };
  const walk = (one) => {
    for (const v of one.nodes) add({ node: v, group: one, members: [v] });
    for (const inner of one.groups.values()) {
      if (inner.open) walk(inner);
      else add({ node: -1, group: inner, members: membersOf(inner) });
    }
  };
  walk(root);
  const inputs = items.map((item, i) => {
    const read = new Set();
    for (const v of item.members) {
      for (const u of data.inputs[v]) if (itemOf[u] !== i) read.add(itemOf[u]);
    }
    return [...read];
  });
  const readers = items.map(() => []);
  inputs.forEach((read, i) => read.forEach((j) => readers[j].push(i)));
  items.forEach((item) => {
    const kernels = new Map();
    let left = 0;
    for (const v of item.members) {
      const k = data.kernel[v];
      if (k >= 0) kernels.set(k, (kernels.get(k) || 0) + 1);
      else if (data.reasons[v]) left += 1;
    }
    item.kernels = [...kernels].sort((a, b) => b[1] - a[1]);
    item.left = left;
    item.kernel = item.node >= 0 ? data.kernel[item.node] : item.group.kernel;
  });
  return { items, itemOf, inputs, readers, ...placed(inputs, readers) };
};
