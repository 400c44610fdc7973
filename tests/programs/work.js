// Compiled JavaScript, native crypto and compression; prints its process id and "ready" when it is at work.
const crypto = require('crypto');
const zlib = require('zlib');

function fibonacci(n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

console.log(`pid ${process.pid}\nready`);
const end = Date.now() + 1000 * Number(process.argv[2]);
let rounds = 0;
while (Date.now() < end) {
  fibonacci(22);
  crypto.pbkdf2Sync('password', 'salt', 1500, 64, 'sha512');
  zlib.gzipSync(Buffer.alloc(200000, rounds % 251));
  rounds++;
}
console.log(`rounds ${rounds > 0 ? 'ok' : 'none'}`);
