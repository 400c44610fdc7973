// Unpacks a trace: base64 of DEFLATE of JSON and columns, as cli/output/src/report/mod.rs describes it.

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

/** Numbers of up to four planes of bytes: a loop for each count of planes, of arrays of one type, is the fastest. */
function lowNumbers(bytes, at, rows, planes) {
  const out = new Uint32Array(rows);
  const [a, b, c, d] = [0, 1, 2, 3].map((i) => bytes.subarray(at + i * rows, at + (i + 1) * rows));
  if (planes === 1) out.set(a);
  else if (planes === 2) for (let i = 0; i < rows; i++) out[i] = a[i] | (b[i] << 8);
  else if (planes === 3) for (let i = 0; i < rows; i++) out[i] = a[i] | (b[i] << 8) | (c[i] << 16);
  else if (planes === 4) for (let i = 0; i < rows; i++) out[i] = a[i] | (b[i] << 8) | (c[i] << 16) | (d[i] << 24);
  return out;
}

/** A column's numbers, from planes of bytes, in an array of a type. */
function numbers(bytes, at, { name, rows, planes }, Type) {
  if (planes > Type.BYTES_PER_ELEMENT) throw new Error(`the numbers of the column ${name} are too large`);
  const low = lowNumbers(bytes, at, rows, Math.min(planes, 4));
  const out = Type === Uint32Array ? low : new Type(low);
  if (planes <= 4) return out;
  const high = lowNumbers(bytes, at + 4 * rows, rows, planes - 4);
  for (let i = 0; i < rows; i++) out[i] += high[i] * 2 ** 32;
  return out;
}

/** What each column becomes. Differences may be negative and are unmapped from zigzag. */
const TYPES = {
  depth: Uint32Array, frame: Uint32Array, gap: Float64Array, wall: Float64Array, last: Float64Array, cpu: Float64Array,
  samples: Uint32Array, node: Int32Array, state: Uint8Array, stop: Uint16Array,
};

/** The difference that a number stands for: 0, 1, 2, 3 are 0, -1, 1, -2. */
function unzigzag(n) {
  const half = Math.floor(n / 2);
  return n === 2 * half ? half : -half - 1;
}

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
  // The last node so far and its callers are open. `last`: that node; -1 = none.
  let last = -1, length = 0;
  for (let n = 0; n <= count; n++) {
    // Behind the last node all are left.
    const step = n < count ? steps[n] : 0;
    const depth = n < count ? length + (step & 1 ? -(step >>> 1) - 1 : step >>> 1) : 0;
    for (; length > depth; length--) {
      end[last] = n;
      open[fn[last]]--;
      last = parent[last];
    }
    if (n === count) break;
    fn[n] = frame[n] >>> 2;
    flags[n] = frame[n] & 3;
    parent[n] = last;
    first[n] = open[fn[n]]++ === 0 ? 1 : 0;
    last = n;
    length = depth + 1;
  }
  return { count, frame, fn, flags, first, parent, end };
}

/**
 * Rows of samples, thread by thread, in time. `node` is -1 without a stack; `last` is the time from the first
 * sample to the last; `reach` is when this row and those of its thread before it have ended.
 */
function rowsOf({ gap, wall, last: length, cpu, samples, node, state, stop }, threads) {
  const count = gap.length;
  const start = new Float64Array(count), reach = new Float64Array(count);
  const starts = [0];
  let i = 0;
  for (const { rows } of threads) {
    for (let at = 0, most = 0, last = i + rows; i < last; i++) {
      start[i] = at + unzigzag(gap[i]);
      at = start[i] + wall[i];
      reach[i] = most = Math.max(most, at);
      node[i] -= 1;
    }
    starts.push(i);
  }
  return { count, start, reach, wall, last: length, cpu, samples, node, state, stop, starts };
}
