// Fixed work in JavaScript and native code: node work.js ROUNDS DONE. Prints elapsed_ms, and ends when the file DONE exists.
const crypto = require('crypto');
const fs = require('fs');
const zlib = require('zlib');

function fibonacci(n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

function pause(ms) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

const [rounds, done] = [Number(process.argv[2]), process.argv[3]];
pause(700);
const before = process.hrtime.bigint();
for (let round = 0; round < rounds; round++) {
  fibonacci(22);
  crypto.pbkdf2Sync('password', 'salt', 1500, 64, 'sha512');
  zlib.gzipSync(Buffer.alloc(200000, round % 251));
}
// console.log cannot open Wine's inherited pipes as sockets.
fs.writeSync(1, `elapsed_ms ${Number(process.hrtime.bigint() - before) / 1e6}\n`);
while (!fs.existsSync(done)) {
  pause(50);
}
