// Which time the timeline and the flame charts show. It is part of the address, but no step of the browser's Back
// unless a key or a click asked for it; the wheel and drags replace the address once they are at rest.

/** The shortest time that is shown, nanoseconds. */
const SHORTEST = 2e4;
/** The time beside what is shown that the worker gives too, as a part of that, so that a drag finds it drawn. */
const MARGIN = 0.5;

const shownTime = () => ({ from: state.shownFrom ?? 0, until: state.shownUntil ?? shown.end });

const isZoomed = () => state.shownFrom !== null;

let rested = 0;

/** Shows a stretch of time. `step`: Back undoes it. */
function showTime(from, until, step = false) {
  const length = Math.min(shown.end, Math.max(SHORTEST, until - from));
  const first = Math.round(Math.min(shown.end - length, Math.max(0, from)));
  const all = length >= shown.end;
  const change = all ? { shownFrom: null, shownUntil: null } : { shownFrom: first, shownUntil: Math.round(first + length) };
  clearTimeout(rested);
  if (step) {
    go(change);
    return;
  }
  Object.assign(state, change);
  drawSoon();
  askZoomed();
  rested = setTimeout(restTime, 150);
}

/** Puts the time that is shown into the address. */
function restTime() {
  history.replaceState(null, "", toHash(state));
  document.body.dataset.ready = location.hash || "#";
  const head = document.querySelector("#timeline .head");
  head?.replaceWith(timelineHead());
}

/** Shows more or less time around a place; 0.5 is the middle. */
function zoomBy(factor, place = 0.5) {
  const { from, until } = shownTime(), length = Math.min(shown.end, Math.max(SHORTEST, (until - from) * factor));
  const at = from + place * (until - from);
  showTime(at - place * length, at + (1 - place) * length);
}

/** Moves what is shown by a part of its length. */
function panBy(part) {
  const { from, until } = shownTime(), by = part * (until - from);
  showTime(from + by, until + by);
}

function zoomToSelection() {
  if (state.from !== null) showTime(state.from, state.until, true);
}

/** The wheel zooms around the pointer, sideways it pans. With Shift, or where there is no more time to show, it scrolls. */
function wheel(event) {
  const { deltaX, deltaY } = event;
  if (event.shiftKey && !deltaX) return;
  const scale = event.deltaMode === 1 ? 16 : 1;
  if (Math.abs(deltaX) > Math.abs(deltaY)) {
    if (!isZoomed()) return;
    panBy((deltaX * scale) / 1000);
  } else {
    if (deltaY > 0 && !isZoomed()) return;
    const { left, width } = $("axis").getBoundingClientRect();
    zoomBy(2 ** ((deltaY * scale) / 300), Math.min(1, Math.max(0, (event.clientX - left) / width)));
  }
  event.preventDefault();
}

/** One question at a time; of those that wait, the last one alone counts. */
let zoomBusy = false, zoomAgain = false;

/** Asks for lanes and charts of what is shown, unless they are there. */
async function askZoomed() {
  if (!answer || state.process === ALL) return;
  if (zoomBusy) {
    zoomAgain = true;
    return;
  }
  zoomBusy = true;
  do {
    zoomAgain = false;
    await askZoomedOnce().catch(fail);
  } while (zoomAgain);
  zoomBusy = false;
  document.body.dataset.drawn = timeline.data?.key ?? "";
}

async function askZoomedOnce() {
  if (!answer) return;
  const { from, until } = shownTime(), margin = isZoomed() ? MARGIN * (until - from) : 0;
  const width = Math.max(50, $("axis")?.clientWidth ?? 1000);
  const asked = { from: Math.max(0, from - margin), until: Math.min(shown.end, until + margin) };
  // A column of two pixels, as densely as the screen shows the time.
  const columns = Math.round((0.5 * width * (asked.until - asked.from)) / (until - from));
  const { selection } = answer;
  const key = JSON.stringify([sumsHash(state), state.process, asked, columns, timeline.listed, state.charts]);
  if (timeline.data?.key === key) return;
  const { lanes, charts, total } = await ask({ ask: "zoomed", selection, ...asked, charts: state.charts, listed: timeline.listed, columns });
  if (answer?.selection !== selection) {
    zoomAgain = true;
    return;
  }
  timeline.data = { key, ...asked, total, lanes: new Map(lanes), charts: new Map(charts.map(({ thread, ...data }) => [thread, prepared(data)])) };
  drawTimeline();
}

/** The whole trace, with what is shown of it: a drag moves that, or draws another one. */
function minimap() {
  const box = el("canvas", { class: "lane", id: "minimap", role: "img", "aria-label": "The whole trace, and the part of it that is shown" });
  box.draw = drawMinimap;
  let from = null;
  const at = (event) => {
    const { left, width } = box.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - left) / width)) * shown.end;
  };
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const time = shownTime();
    const inside = isZoomed() && at(event) >= time.from && at(event) <= time.until;
    from = { at: at(event), ...time, inside };
    box.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  box.addEventListener("pointermove", (event) => {
    if (!from) return;
    const by = at(event) - from.at;
    if (from.inside) showTime(from.from + by, from.until + by);
    else if (Math.abs(by) > shown.end / 300) showTime(...[from.at, at(event)].sort((a, b) => a - b));
  });
  box.addEventListener("pointerup", (event) => {
    if (from && !from.inside && isZoomed() && Math.abs(at(event) - from.at) <= shown.end / 300) {
      const half = (from.until - from.from) / 2;
      showTime(from.at - half, from.at + half);
    }
    from = null;
  });
  box.addEventListener("wheel", (event) => {
    if (event.deltaY > 0 && !isZoomed()) return;
    event.preventDefault();
    const time = shownTime();
    zoomBy(2 ** (event.deltaY / 300), Math.min(1, Math.max(0, (at(event) - time.from) / (time.until - time.from))));
  }, { passive: false });
  return el("div", { class: "row mini" }, el("span", { class: "label soft" }, "Whole trace"), box, el("span", { class: "amount" }));
}

function drawMinimap(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  drawTotal(canvas, { from: 0, until: shown.end }, false);
  const pen = canvas.getContext("2d"), { from, until } = shownTime();
  const [left, right] = [from, until].map((at) => (at / shown.end) * width);
  if (state.from !== null) {
    pen.globalAlpha = 0.2;
    pen.fillStyle = paint.accent;
    pen.fillRect((state.from / shown.end) * width, 0, Math.max(1, ((Math.min(state.until, shown.end) - state.from) / shown.end) * width), height);
  }
  if (isZoomed()) {
    pen.globalAlpha = 0.7;
    pen.fillStyle = paint.panel;
    pen.fillRect(0, 0, left, height);
    pen.fillRect(right, 0, width - right, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = paint.ink;
    pen.strokeRect(left + 0.5, 0.5, Math.max(2, right - left - 1), height - 1);
  }
  pen.globalAlpha = 1;
}
