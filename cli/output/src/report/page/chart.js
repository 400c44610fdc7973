// A flame chart: the stacks of a thread over the time that is shown, below its row of the timeline.

const CHART_ROW = 17;
/** Rows of a chart that are in sight; it scrolls further down. */
const CHART_ROWS = 16;

/** By thread: what is under the pointer and under the keyboard's cursor. Boxes are known by their places in the data. */
const charts = { hover: null, cursor: null, drag: null };

/** The boxes of a chart, by depth, from left to right. */
function prepared(data) {
  const { depth } = data.boxes, rows = [];
  for (let i = 0; i < depth.length; i++) (rows[depth[i]] ??= []).push(i);
  return { ...data, rows };
}

/** The element of a thread's chart. */
function chartOf(t) {
  const facts = shown.facts.threads[t];
  const canvas = el("canvas", { id: `chart-${t}`, tabIndex: 0, role: "application", "aria-label": `Flame chart of ${threadName(facts)}. Arrow keys move between boxes, Enter shows a box alone, plus and minus zoom, Escape shows more time.` });
  const spacer = el("div", { class: "spacer" });
  const scroller = el("div", { class: "chart", "data-thread": String(t) }, canvas, spacer);
  Object.assign(canvas, { thread: t, scroller, spacer });
  scroller.addEventListener("scroll", drawSoon);
  const at = (event) => boxAt(canvas, event.offsetX, event.offsetY + scroller.scrollTop);
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    charts.drag = { x: event.clientX, y: event.clientY, top: scroller.scrollTop, ...shownTime(), moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { drag } = charts;
    if (!drag) {
      hoverBox(canvas, at(event), event);
      return;
    }
    const by = drag.x - event.clientX;
    drag.moved ||= Math.abs(by) + Math.abs(event.clientY - drag.y) > 4;
    if (!drag.moved) return;
    hideTip();
    scroller.scrollTop = drag.top + drag.y - event.clientY;
    const scale = (drag.until - drag.from) / canvas.clientWidth;
    if (isZoomed()) showTime(drag.from + by * scale, drag.until + by * scale);
  });
  canvas.addEventListener("pointerup", (event) => {
    const { drag } = charts;
    charts.drag = null;
    if (drag && !drag.moved) clickBox(canvas, at(event));
  });
  canvas.addEventListener("pointercancel", () => (charts.drag = null));
  canvas.addEventListener("mouseleave", () => hoverBox(canvas, -1));
  canvas.addEventListener("contextmenu", (event) => {
    const box = at(event);
    if (box < 0 || dataOf(t).boxes.fn[box] < 0) return;
    event.preventDefault();
    menuOfBox(canvas, box, event.clientX, event.clientY);
  });
  canvas.addEventListener("keydown", (event) => chartKeys(canvas, event));
  canvas.addEventListener("focus", drawSoon);
  canvas.addEventListener("blur", drawSoon);
  return el("div", { class: "row charted" }, el("span", { class: "label soft" }, chartNote(t)), scroller, el("span", {}));
}

function chartNote(t) {
  const thread = answer.threads.find((thread) => thread.t === t);
  return thread ? `${span(thread.cpu)} CPU, ${span(thread.time[3])} waiting, ${counted(thread.samples, "sample")}` : "Nothing of it is in the selection.";
}

const dataOf = (t) => timeline.data?.charts.get(t);

/** The functions of a box's stack, outermost first. */
function stackOfBox({ boxes: { fn, parent } }, box) {
  const path = [];
  for (let at = box; at >= 0; at = parent[at]) path.unshift(fn[at]);
  return path;
}

function drawCharts() {
  for (const scroller of document.querySelectorAll("#timeline .chart")) if (isInSight(scroller)) drawChart(scroller.firstChild);
}

function drawChart(canvas) {
  const { thread, scroller, spacer } = canvas, data = dataOf(thread);
  const width = scroller.clientWidth;
  if (!data || width < 1) return;
  const height = Math.max(2, Math.min(CHART_ROWS, data.rows.length)) * CHART_ROW;
  scroller.style.height = `${height}px`;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  spacer.style.height = `${data.rows.length * CHART_ROW}px`;
  spacer.style.marginTop = `-${height}px`;
  const pen = penOf(canvas, width, height);
  pen.font = `11px ${paint.mono}`;
  pen.textBaseline = "middle";
  const top = scroller.scrollTop, time = shownTime();
  const how = { pen, data, width, from: time.from, scale: width / (time.until - time.from), until: time.until };
  const names = [];
  for (let depth = Math.floor(top / CHART_ROW); depth < data.rows.length && depth * CHART_ROW < top + height; depth++) drawBoxes(how, data.rows[depth], depth * CHART_ROW - top, names);
  drawWaits(how, height);
  for (const [f, matched, left, y, wide] of names) {
    pen.fillStyle = f < 0 ? paint.soft : matched ? "#fff" : paint.text;
    pen.fillText(f < 0 ? fitted(pen, nameOf(f), wide) : fittedName(pen, f, wide), left, y);
  }
  const marked = [charts.hover, document.activeElement === canvas ? charts.cursor : null].filter((mark) => mark?.data === data);
  for (const { box } of marked) {
    const [left, right] = pixelsOf(data.boxes.x[box], data.boxes.x[box] + data.boxes.wide[box], width);
    pen.strokeStyle = paint.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(left + 0.75, data.boxes.depth[box] * CHART_ROW - top + 0.75, Math.max(1, right - left - 1.5), CHART_ROW - 2.5);
  }
}

/** Pales what waits. */
function drawWaits({ pen, data: { waits }, from, until, scale, width }, height) {
  pen.fillStyle = paint.panel;
  pen.globalAlpha = 0.55;
  for (let i = 0; i < waits.length; i += 2) {
    if (waits[i] >= until || waits[i + 1] <= from) continue;
    const left = Math.max(0, (waits[i] - from) * scale), right = Math.min(width, (waits[i + 1] - from) * scale);
    pen.fillRect(left, 0, right - left, height);
  }
  pen.globalAlpha = 1;
}

/** Draws a row of boxes, and lists the names to write over them. Boxes that share a pixel with the last one are left out. */
function drawBoxes({ pen, data: { boxes }, from, until, scale, width }, row, y, names) {
  const { fn, x, wide, unproved } = boxes;
  let low = 0, high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[row[middle]] + wide[row[middle]] <= from) low = middle + 1;
    else high = middle;
  }
  let last = -1, fill = null, alpha = 1;
  for (let at = low; at < row.length; at++) {
    const box = row[at], f = fn[box];
    if (x[box] >= until) break;
    const left = Math.max(0, (x[box] - from) * scale), right = Math.min(width, (x[box] + wide[box] - from) * scale);
    if (right - last < 0.5) continue;
    last = right;
    const matched = answer.matches && f >= 0 && answer.matches[f];
    const inner = Math.max(right - left - (right - left > 3 ? 1 : 0), 0.5);
    const colour = matched ? paint.match : boxColour(f), dim = answer.matches && !matched ? 0.45 : 1;
    if (dim !== alpha) pen.globalAlpha = alpha = dim;
    if (colour !== fill) pen.fillStyle = fill = colour;
    pen.fillRect(left, y, inner, CHART_ROW - 1);
    if (unproved[box]) {
      pen.fillStyle = fill = paint.hatching;
      pen.fillRect(left, y, inner, CHART_ROW - 1);
    }
    if (right - left > 26) names.push([f, matched, left + 4, y + CHART_ROW / 2, right - left - 8]);
  }
  pen.globalAlpha = 1;
}

function boxColour(f) {
  if (f < 0) return paint.line;
  if (state.colour !== "heat") return chosenColour(f, 0);
  answer.mostOwn ??= answer.functions.self.reduce((most, weight) => Math.max(most, weight), 0);
  return chosenColour(f, answer.functions.self[f] / (answer.mostOwn || 1));
}

/** The box at a place of a chart; -1 = none. */
function boxAt(canvas, px, py) {
  const data = dataOf(canvas.thread), row = data?.rows[Math.floor(py / CHART_ROW)];
  if (!row) return -1;
  const { x, wide } = data.boxes, { from, until } = shownTime();
  const at = from + (px / canvas.clientWidth) * (until - from);
  let low = 0, high = row.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (x[row[middle]] <= at) low = middle;
    else high = middle - 1;
  }
  return at >= x[row[low]] && at < x[row[low]] + wide[row[low]] ? row[low] : -1;
}

function hoverBox(canvas, box, event) {
  const data = dataOf(canvas.thread);
  const changed = box < 0 ? charts.hover : charts.hover?.box !== box || charts.hover.data !== data;
  charts.hover = box < 0 ? null : { box, data };
  if (changed) {
    canvas.style.cursor = box < 0 ? (isZoomed() ? "grab" : "default") : "pointer";
    drawSoon();
  }
  if (box < 0) {
    hideTip();
    return;
  }
  const mark = charts.hover;
  showTip(boxTip(canvas.thread, data, box), event.clientX, event.clientY);
  if (mark.sums || !changed) return;
  const { x, wide } = data.boxes;
  const path = stackOfBox(data, box).filter((f) => f >= 0);
  ask({ ask: "box", selection: answer.selection, thread: canvas.thread, from: x[box], until: x[box] + wide[box], path }).then((sums) => {
    mark.sums = sums;
    if (charts.hover === mark && !$("tooltip").hidden) showTip(boxTip(canvas.thread, data, box, sums), event.clientX, event.clientY);
  }, fail);
}

/** What the tooltip says of a box: its time, and the exact sums of the thread's samples in it. */
function boxTip(t, { boxes: { fn, x, wide } }, box, sums) {
  const f = fn[box], tip = el("div", {});
  tip.append(el("b", {}, nameOf(f)), el("div", { class: "soft" }, [f >= 0 ? moduleOf(f) : "", threadName(shown.facts.threads[t])].filter(Boolean).join(" · ")), el("div", {}, `${timeText(x[box], x[box] + wide[box])}`));
  tip.append(el("div", { class: "soft" }, sums ? `in it: ${answer.cpuKnown ? `${span(sums.cpu)} CPU, ` : ""}${span(sums.wall)} with this stack${sums.waiting > 0 ? `, ${span(sums.waiting)} of it waiting` : ""}, ${counted(sums.samples, "sample")}` : "…"));
  return tip;
}

/** A click shows a box alone; on the box that fills what is shown, twice the time. */
function clickBox(canvas, box) {
  if (box < 0) return;
  const data = dataOf(canvas.thread), { x, wide } = data.boxes;
  charts.cursor = { box, data };
  hideTip();
  const { from, until } = shownTime();
  if (x[box] <= from && x[box] + wide[box] >= until) zoomOut();
  else showTime(x[box], x[box] + wide[box], true);
}

/** Shows more time as one step of Back. */
function zoomOut() {
  const { from, until } = shownTime(), half = (until - from) / 2;
  if (isZoomed()) showTime(from - half, until + half, true);
}

function menuOfBox(canvas, box, x, y) {
  const data = dataOf(canvas.thread);
  openMenuOf(data.boxes.fn[box], stackOfBox(data, box).reverse(), x, y, () => clickBox(canvas, box), () => go({ from: Math.round(data.boxes.x[box]), until: Math.round(data.boxes.x[box] + data.boxes.wide[box]) }));
}

/** The box in the middle of what is shown, at a depth. */
const middleBox = (canvas, depth) => boxAt(canvas, canvas.clientWidth / 2, depth * CHART_ROW + 1);

/** Keys in a chart: arrows move between boxes; what is not in sight is brought there. */
function chartKeys(canvas, event) {
  const data = dataOf(canvas.thread);
  if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
  const { boxes, rows } = data, { from, until } = shownTime();
  let box = charts.cursor?.data === data ? charts.cursor.box : -1;
  const move = (next) => {
    if (next === undefined || next < 0) return;
    box = next;
    charts.cursor = { box, data };
    const start = boxes.x[box], end = start + boxes.wide[box];
    if (end <= from || start >= until) showTime(start - (until - from) / 2, start + (until - from) / 2);
    const y = boxes.depth[box] * CHART_ROW, { scroller } = canvas;
    if (y < scroller.scrollTop || y + CHART_ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y - scroller.clientHeight / 2;
    drawSoon();
    say(`${nameOf(boxes.fn[box])}, ${timeText(start, end)}`);
  };
  const beside = (step) => {
    const row = rows[boxes.depth[box]];
    return row[row.indexOf(box) + step];
  };
  const below = () => (rows[boxes.depth[box] + 1] ?? []).filter((other) => boxes.parent[other] === box).sort((a, b) => boxes.wide[b] - boxes.wide[a])[0];
  const f = box >= 0 ? boxes.fn[box] : -1;
  const start = () => move(Math.max(middleBox(canvas, 0), rows[0]?.[0] ?? -1));
  const keys = {
    ArrowLeft: () => (box < 0 ? start() : move(beside(-1))),
    ArrowRight: () => (box < 0 ? start() : move(beside(1))),
    ArrowUp: () => (box < 0 ? start() : move(boxes.parent[box])),
    ArrowDown: () => (box < 0 ? start() : move(below())),
    Enter: () => clickBox(canvas, box),
    Escape: zoomOut,
    a: () => panBy(-0.2),
    d: () => panBy(0.2),
    ...(f >= 0 ? functionKeys(f, stackOfBox(data, box).reverse()) : {}),
  };
  if (f >= 0 && (event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey))) {
    const { left, top } = canvas.getBoundingClientRect(), [px] = pixelsOf(boxes.x[box], boxes.x[box] + 1, canvas.clientWidth);
    keys[event.key] = () => menuOfBox(canvas, box, left + px + 8, top + (boxes.depth[box] + 1) * CHART_ROW - canvas.scroller.scrollTop);
  }
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  keys[event.key]();
}
