// The flame graph: frames of the worker on a canvas. Only the rows in sight are drawn.

const ROW = 20;

/** What the canvas shows. `rows`: by depth, the frames from left to right. */
const flame = { frames: null, all: 1, rows: [], cursor: -1, hover: -1, hits: [], hit: -1, canvas: null, scroller: null };

/** Builds the view around the canvas. */
function flameView(view) {
  flame.scroller = el("div", { class: "flame" });
  flame.canvas = el("canvas", { tabIndex: 0, id: "flame", role: "application", "aria-label": "Flame graph. Arrow keys move between frames, Enter zooms in, Escape zooms out." });
  flame.spacer = el("div", {});
  flame.scroller.append(flame.canvas, flame.spacer);
  view.replaceChildren(el("div", { class: "legend", id: "legend" }), flame.scroller);
  flame.scroller.addEventListener("scroll", () => drawFlame());
  const at = (event) => frameAt(event.offsetX, event.offsetY + flame.scroller.scrollTop);
  flame.canvas.addEventListener("mousemove", (event) => hoverFrame(at(event), event));
  flame.canvas.addEventListener("mouseleave", () => hoverFrame(-1));
  flame.canvas.addEventListener("click", (event) => clickFrame(at(event)));
  flame.canvas.addEventListener("contextmenu", (event) => {
    const frame = at(event);
    if (frame < 0 || flame.frames.fn[frame] < 0) return;
    event.preventDefault();
    openMenu(frame, event.clientX, event.clientY);
  });
  flame.canvas.addEventListener("focus", () => drawFlame());
  flame.canvas.addEventListener("blur", () => drawFlame());
}

/** Takes the frames of an answer. */
function showFlame({ flame: { frames, all } }) {
  if (flame.frames === frames) {
    flameLegend();
    drawFlame();
    return;
  }
  Object.assign(flame, { frames, all: all || 1, cursor: -1, hover: -1, hit: -1, rows: [], mostSelf: 0 });
  for (let i = 0; i < frames.fn.length; i++) if (frames.fn[i] >= 0) flame.mostSelf = Math.max(flame.mostSelf, frames.self[i]);
  for (let i = 0; i < frames.fn.length; i++) (flame.rows[frames.depth[i]] ??= []).push(i);
  for (const row of flame.rows) row?.sort((a, b) => frames.x[a] - frames.x[b]);
  flame.spacer.style.height = `${Math.max(1, flame.rows.length) * ROW}px`;
  flameLegend();
  drawFlame();
}

/** A key of the legend, in a colour of the style or one of its own. */
const legendKey = (name, text, background) => el("span", {}, el("i", { class: `key ${name}`, style: background ? { background } : {} }), text);

/** What the colours mean. */
function colourKeys() {
  const others = [legendKey("system", "system"), legendKey("runtime", "runtime, framework")];
  const keys = {
    module: () => [...moduleKeys(), ...others],
    category: () => [legendKey("", "your code", tint(HUES[0])), ...others],
    thread: () => [...answer.threads.filter(({ chosen }) => chosen).sort((a, b) => b.weight - a.weight).slice(0, 6).map(({ t }) => legendKey("", threadName(shown.facts.threads[t]), threadColour(t))), legendKey("", "several threads", paint.unknown)],
    heat: () => [legendKey("", "no own weight", heatColour(0)), legendKey("", "most own weight", heatColour(1))],
  };
  return keys[state.colour]();
}

/** The choice of colours, with what they mean. */
function legendOf(note) {
  const choice = el("select", { "aria-label": "Colours", onchange: (event) => chooseColour(event.target.value) }, ...Object.entries(COLOURS).map(([key, text]) => el("option", { value: key, selected: key === state.colour }, `Colour: ${text}`)));
  return [choice, ...colourKeys(), legendKey("hatched", "not proved"), answer.matches ? legendKey("match", "found") : "", el("span", { class: "soft" }, note)];
}

function flameLegend() {
  const [root, below] = state.inverted ? ["where stacks end", "their callers"] : ["callers", "their callees"];
  $("legend").replaceChildren(...legendOf(`Top: ${root}; below: ${below}. Width: ${WEIGHTS[shown.weight].title}.`).filter(Boolean));
}

/** The colour of a function that has this part of the largest own weight. */
function chosenColour(f, heat) {
  if (f < 0) return paint.line;
  if (state.colour === "heat") return heatColour(Math.sqrt(Math.min(1, heat)));
  if (state.colour === "thread" && answer.threadOf) return answer.threadOf[f] < 0 ? paint.unknown : threadColour(answer.threadOf[f]);
  return colourOf(f);
}

/** The frame at a place of the canvas; -1 = none. */
function frameAt(x, y) {
  const row = flame.rows[Math.floor(y / ROW)];
  if (!row) return -1;
  const { x: left, weight } = flame.frames;
  const at = (x / flame.canvas.clientWidth) * flame.all;
  let low = 0, high = row.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (left[row[middle]] <= at) low = middle;
    else high = middle - 1;
  }
  const frame = row[low];
  return at >= left[frame] && at < left[frame] + weight[frame] ? frame : -1;
}

/** Sizes a canvas to its element for the screen's pixels, and gives its pen. */
function penOf(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function drawFlame() {
  const { frames, rows, scroller, canvas, spacer } = flame;
  if (!frames || !scroller?.isConnected) return;
  // As tall as its frames, but not taller than the window.
  const height = Math.max(6 * ROW, Math.min(rows.length * ROW + 2, innerHeight - 150));
  scroller.style.height = `${height}px`;
  spacer.style.marginTop = `-${height}px`;
  const width = scroller.clientWidth;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = penOf(canvas, width, height);
  pen.font = `12px ${paint.mono}`;
  pen.textBaseline = "middle";
  const top = scroller.scrollTop;
  for (let depth = Math.floor(top / ROW); depth < rows.length && depth * ROW < top + height; depth++) {
    for (const frame of rows[depth] ?? []) drawFrame(pen, frame, width, depth * ROW - top);
  }
  if (!frames.fn.length) {
    pen.fillStyle = paint.soft;
    pen.fillText(emptyText(), 12, 24);
  }
}

/** Why there is nothing to draw, and the way out. */
function emptyText() {
  if (answer.weight > 0) return "Only code of the system and of runtimes is in this selection: turn My code off (m).";
  if (shown.weight === "cpu" && !answer.cpuKnown) return "No CPU time is recorded: choose another weight.";
  return "Nothing of this weight is in the selection: r takes the whole trace again.";
}

function drawFrame(pen, frame, width, y) {
  const { fn, x, weight, self, unproved } = flame.frames;
  const scale = width / flame.all;
  const left = x[frame] * scale;
  const wide = Math.min(weight[frame], flame.all) * scale;
  if (wide < 0.3) return;
  const f = fn[frame];
  const matched = answer.matches && f >= 0 && answer.matches[f];
  const inner = Math.max(wide - (wide > 3 ? 1 : 0), 0.3);
  pen.globalAlpha = answer.matches && !matched ? 0.45 : 1;
  pen.fillStyle = matched ? paint.match : chosenColour(f, self[frame] / (flame.mostSelf || 1));
  pen.fillRect(left, y, inner, ROW - 1);
  if (unproved[frame] > 0) {
    pen.fillStyle = paint.hatching;
    pen.fillRect(left, y, Math.max(2, (inner * unproved[frame]) / weight[frame]), ROW - 1);
  }
  pen.globalAlpha = 1;
  if (frame === flame.hover || (frame === flame.cursor && (flame.hit >= 0 || document.activeElement === flame.canvas))) {
    pen.strokeStyle = paint.ink;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, y + 1, Math.max(1, inner - 2), ROW - 3);
  }
  if (wide > 28) {
    pen.fillStyle = f < 0 ? paint.soft : matched ? "#fff" : paint.text;
    pen.fillText(fittedName(pen, f, wide - 9), left + 4, y + ROW / 2);
  }
}

/** A function's name; where it does not fit, its end: `…Garbage` of `app!Program.Garbage()`. */
function fittedName(pen, f, width) {
  if (f < 0) return fitted(pen, "narrow frames", width);
  const name = nameOf(f);
  const whole = fitted(pen, name, width);
  if (!whole.endsWith("…") && whole) return whole;
  const end = /(?:::|[.!])([^.:!]{2,})$/.exec(name.replace(/\(.*$/, ""));
  return end ? fitted(pen, `…${end[1]}`, width) : whole;
}

/** As much of a text as fits. The letters of the font are equally wide, but not those of all scripts. */
function fitted(pen, text, width) {
  const letter = ((fitted.letters ??= {})[pen.font] ??= pen.measureText("m").width);
  if (text.length * letter <= width && /^[\x20-\x7e]*$/.test(text)) return text;
  let fits = Math.max(0, Math.floor(width / letter) - 1);
  while (fits > 0 && pen.measureText(text.slice(0, fits) + "…").width > width) fits--;
  if (fits >= text.length) return text;
  return fits > 1 ? text.slice(0, fits) + "…" : "";
}

/** The functions of a frame's stack, outermost first, and the frame's place in it. */
function pathOf(frame) {
  const path = [];
  for (let at = frame; at >= 0; at = flame.frames.parent[at]) path.unshift(flame.frames.fn[at]);
  return path;
}

/** The functions of a frame's stack, innermost first. */
const stackOf = (frame) => (state.inverted ? pathOf(frame) : pathOf(frame).reverse());

function hoverFrame(frame, event) {
  if (frame !== flame.hover) {
    flame.hover = frame;
    flame.canvas.style.cursor = frame >= 0 ? "pointer" : "default";
    drawFlame();
  }
  if (frame >= 0) showTip(frameTip(frame), event.clientX, event.clientY);
  else hideTip();
}

function clickFrame(frame) {
  if (frame < 0 || flame.frames.fn[frame] < 0) return;
  const path = pathOf(frame);
  const again = path.length === state.zoom.length && path.every((f, i) => f === state.zoom[i]);
  hideTip();
  go({ zoom: again ? path.slice(0, -1) : path });
}

/** What the tooltip says of a frame. */
function frameTip(frame) {
  const { fn, weight, self, unproved } = flame.frames;
  const f = fn[frame];
  const amounts = [["total", weight[frame]]];
  if (f >= 0) amounts.push([state.inverted ? "no caller" : "self", self[frame]]);
  const more = [];
  if (f < 0) more.push("Frames too narrow to draw one by one: zoom in.");
  if (unproved[frame] > 0) more.push(`${percent(unproved[frame], weight[frame])} of it is not proved: a guess, or found by a weaker rule.`);
  return tipOf(f, amounts, more);
}

/** Moves the cursor of the keyboard: to the caller, the widest callee, a neighbour. */
function moveCursor(key) {
  const { frames, rows, cursor } = flame;
  if (!frames.fn.length) return;
  let next = cursor;
  if (cursor < 0) next = rows[0][0];
  else if (key === "ArrowUp") next = frames.parent[cursor];
  else if (key === "ArrowDown") next = (rows[frames.depth[cursor] + 1] ?? []).find((i) => frames.parent[i] === cursor) ?? cursor;
  else {
    const row = rows[frames.depth[cursor]];
    next = row[row.indexOf(cursor) + (key === "ArrowLeft" ? -1 : 1)] ?? cursor;
  }
  if (next < 0) return;
  flame.hit = -1;
  showCursor(next);
  const f = frames.fn[next];
  say(`${f < 0 ? "narrow frames" : nameOf(f)}, ${bothShares(frames.weight[next])}`);
}

/** Moves the cursor to a frame and scrolls to it. */
function showCursor(frame) {
  flame.cursor = frame;
  const y = flame.frames.depth[frame] * ROW, { scroller } = flame;
  if (y < scroller.scrollTop || y + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y - scroller.clientHeight / 3;
  drawFlame();
}

/** Frames that the search finds, the widest first. One below another that is found is a hit too. */
function hitsOf({ fn, weight, depth }, matches) {
  const hits = [];
  for (let i = 0; i < fn.length; i++) if (fn[i] >= 0 && matches[fn[i]]) hits.push(i);
  return hits.sort((a, b) => weight[b] - weight[a] || depth[a] - depth[b] || a - b);
}
