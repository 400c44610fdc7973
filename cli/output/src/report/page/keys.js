// The keyboard, and the list of its keys.

const KEYS = [
  ["/", "search: counts and marks what it finds; Enter: next hit, with Shift the one before; Ctrl+Enter: filter; Escape clears it"],
  ["1 – 9", "the views, from left to right"],
  ["i", "callers instead of callees in the flame graph and the call tree, and back"],
  ["m", "fold code of the system and of runtimes into your code, or show it"],
  ["o", "fold recursion: show a cycle of calls that follows itself once, or each time"],
  ["w", "next weight: CPU time, time, waits, samples"],
  ["k", "next colours: by module, whose code, thread, own weight"],
  ["z, + −", "show the selected time alone; less or more time"],
  ["s", "open the flame chart of the thread with the most CPU time, or close it"],
  ["l", "fold the timeline, or show it"],
  ["r", "select and show the whole trace again"],
  ["Backspace", "back, as the browser's button"],
  ["t", "light or dark"],
  ["?", "this list"],
  ["In the flame graph and in flame charts", ""],
  ["← → ↑ ↓", "move between frames"],
  ["Enter, Escape", "zoom in, zoom out"],
  ["f h c y", "focus, hide, callers and callees, copy the stack of the frame"],
  ["Menu, Shift F10", "menu of the frame; with the mouse: right click"],
  ["a d", "in a flame chart: earlier, later"],
  ["In a call tree", ""],
  ["← →", "close, open; to the caller, to the callee"],
  ["*", "open the heaviest path"],
  ["Enter", "callers and callees"],
  ["In the timeline", ""],
  ["drag", "select a time; a click on the first row selects all of it"],
  ["wheel", "zoom around the pointer; sideways: move; with Shift: scroll"],
  ["← → + −", "move the selected time, make it shorter or longer"],
  ["click", "on a thread's lane: its stacks over time; on its name: select it alone, with Ctrl: add it"],
];

function showKeys() {
  const dialog = $("keys");
  const rows = KEYS.map(([key, text]) => (text ? el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, text)) : el("tr", {}, el("th", { colSpan: 2 }, key))));
  dialog.replaceChildren(el("h2", {}, "Keys"), el("table", {}, el("tbody", {}, ...rows)), el("form", { method: "dialog" }, el("button", { type: "submit" }, "Close")));
  dialog.showModal();
}

/** Keys that act on a frame of the flame graph. */
function frameKeys(event) {
  const { cursor } = flame;
  const f = cursor >= 0 ? flame.frames.fn[cursor] : -1;
  const keys = {
    ArrowUp: () => moveCursor("ArrowUp"),
    ArrowDown: () => moveCursor("ArrowDown"),
    ArrowLeft: () => moveCursor("ArrowLeft"),
    ArrowRight: () => moveCursor("ArrowRight"),
    Enter: () => clickFrame(cursor),
    Escape: () => go({ zoom: state.zoom.slice(0, -1) }),
  };
  if (f >= 0) {
    Object.assign(keys, functionKeys(f, stackOf(cursor)), {
      ContextMenu: () => menuAtCursor(),
      F10: () => event.shiftKey && menuAtCursor(),
    });
  }
  return keys[event.key];
}

function menuAtCursor() {
  const { left, top } = flame.canvas.getBoundingClientRect();
  const { x, depth } = flame.frames;
  const { cursor } = flame;
  openMenu(cursor, left + (x[cursor] / flame.all) * flame.canvas.clientWidth + 12, top + (depth[cursor] + 1) * ROW - flame.scroller.scrollTop);
}

const PAGE_KEYS = {
  "/": () => $("search").select(),
  i: () => toggleInverted(),
  m: () => go({ mine: !state.mine, zoom: [] }),
  o: () => go({ once: !state.once, zoom: [] }),
  w: () => {
    const all = Object.keys(WEIGHTS);
    go({ weight: all[(all.indexOf(shown.weight) + 1) % all.length] });
  },
  k: () => {
    const all = Object.keys(COLOURS);
    go({ colour: all[(all.indexOf(state.colour) + 1) % all.length] });
  },
  z: () => zoomToSelection(),
  "+": () => zoomBy(0.5),
  "-": () => zoomBy(2),
  s: () => timeline.listed.length && toggleChart(state.charts[0] ?? timeline.listed[0]),
  l: () => fold(),
  r: () => reset(),
  t: () => toggleTheme(),
  "?": () => showKeys(),
  Backspace: () => history.back(),
  Escape: () => state.zoom.length && go({ zoom: state.zoom.slice(0, -1) }),
};

const toggleInverted = () => go({ inverted: !state.inverted, zoom: [], view: state.view === "tree" ? "tree" : "flame" });

/** Keys that do something where no trace is shown, and those that need its time line. */
const KEYS_OF_LIST = ["t", "?", "Backspace"], KEYS_OF_TIME = ["z", "+", "-", "s", "l"];

/** Whether a key does something to what is shown. */
const isForState = (key) => (state.view === "traces" ? KEYS_OF_LIST.includes(key) : state.process !== ALL || !KEYS_OF_TIME.includes(key));

function onKey(event) {
  const { target, key } = event;
  if (target.id === "search") {
    searchKeys(event);
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || !(answer || state.view === "traces")) return;
  if (target.tagName === "SELECT" || target.tagName === "INPUT") return;
  let act = target.id === "flame" ? frameKeys(event) : undefined;
  if (target.role === "tab" && (key === "ArrowLeft" || key === "ArrowRight")) {
    const all = viewsOf(state.process);
    const at = all.indexOf(state.view) + (key === "ArrowRight" ? 1 : -1);
    act = () => go({ view: all[(at + all.length) % all.length] });
  }
  if (/^[1-9]$/.test(key)) act = () => go({ view: viewsOf(state.process)[Number(key) - 1] });
  act ??= Object.hasOwn(PAGE_KEYS, key) && isForState(key) ? PAGE_KEYS[key] : undefined;
  if (!act) return;
  event.preventDefault();
  act();
}
