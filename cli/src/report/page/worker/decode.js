// Unpacks a trace: base64 of DEFLATE of JSON and columns, as cli/src/report/mod.rs describes it.

/** Bytes of base64. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** The bytes of a DEFLATE stream. */
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A column's numbers, from planes of bytes, in an array of the type that is asked for. */
function numbers(bytes, at, { rows, planes }, Type) {
  const out = new Type(rows);
  let scale = 1;
  for (let plane = 0; plane < planes; plane++, scale *= 256, at += rows) {
    for (let i = 0; i < rows; i++) out[i] += bytes[at + i] * scale;
  }
  return out;
}

/** What each column becomes. Differences may be negative and are unmapped from zigzag. */
const TYPES = {
  depth: Float64Array, frame: Float64Array, gap: Float64Array, wall: Float64Array, cpu: Float64Array,
  samples: Uint32Array, node: Int32Array, state: Uint8Array, stop: Uint16Array,
};

const unzigzag = (n) => (n % 2 ? -(n + 1) / 2 : n / 2);

/** The trace of a block: its facts, its tree and its rows. */
async function decode(text) {
  const bytes = await inflate(bytesOf(text));
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = {};
  let at = 4 + length;
  for (const column of facts.columns) {
    columns[column.name] = numbers(bytes, at, column, TYPES[column.name]);
    at += column.rows * column.planes;
  }
  if (at !== bytes.length) throw new Error(`the data has ${bytes.length} bytes, its columns end at ${at}`);
  return { facts, tree: treeOf(columns, facts.functions.names.length), rows: rowsOf(columns, facts.threads) };
}

/**
 * The call tree in the order of a visit: callees follow their caller, and `end[n]` is the first node
 * behind the callees of n. `first[n]`: no caller of n is the same function, so that recursion counts once.
 */
function treeOf({ depth: steps, frame }, functions) {
  const count = frame.length;
  const fn = new Int32Array(count), flags = new Uint8Array(count), first = new Uint8Array(count);
  const parent = new Int32Array(count), end = new Int32Array(count);
  const open = new Int32Array(functions);
  const path = [];
  const leave = (to, next) => {
    while (path.length > to) {
      const done = path.pop();
      end[done] = next;
      open[fn[done]]--;
    }
  };
  let expected = 0;
  for (let n = 0; n < count; n++) {
    const depth = expected + unzigzag(steps[n]);
    expected = depth + 1;
    leave(depth, n);
    fn[n] = Math.floor(frame[n] / 4);
    flags[n] = frame[n] % 4;
    parent[n] = depth ? path[depth - 1] : -1;
    first[n] = open[fn[n]]++ === 0 ? 1 : 0;
    path.push(n);
  }
  leave(0, count);
  return { count, fn, flags, first, parent, end };
}

/** Rows of samples, thread by thread. `node` is -1 without a stack. */
function rowsOf({ gap, wall, cpu, samples, node, state, stop }, threads) {
  const count = gap.length;
  const start = new Float64Array(count);
  const starts = [0];
  let i = 0;
  for (const { rows } of threads) {
    for (let at = 0, last = i + rows; i < last; i++) {
      start[i] = at + unzigzag(gap[i]);
      at = start[i] + wall[i];
      node[i] -= 1;
    }
    starts.push(i);
  }
  return { count, start, wall, cpu, samples, node, state, stop, starts };
}
