/**
 * Serves a built page on 127.0.0.1, for tests and for a look at it: `node site/build/serve.mjs [PORT]`. It compresses
 * text as a usual static host does, and nothing else.
 */
import { createReadStream, existsSync, statSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { createGzip } from "node:zlib";
import { DIST } from "./paths.mjs";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
  ".webmanifest": "application/manifest+json",
};
const TEXT = new Set(Object.keys(TYPES).filter((suffix) => suffix !== ".wasm"));

/** Serve a folder; resolves to its address and what closes it. `asked` gets the path of each request, and what `missing` matches is not there. */
export function serve({ folder = DIST, port = 0, asked = () => {}, headers = {}, missing = /^$/u } = {}) {
  const server = http.createServer((request, response) => {
    const wanted = decodeURIComponent(new URL(request.url ?? "/", "http://127.0.0.1").pathname);
    asked(wanted);
    const file = path.join(folder, wanted.endsWith("/") ? `${wanted}index.html` : wanted);
    if (missing.test(wanted) || !file.startsWith(folder + path.sep) || !existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    const suffix = path.extname(file);
    const squeeze = TEXT.has(suffix) && /\bgzip\b/u.test(String(request.headers["accept-encoding"] ?? ""));
    response.writeHead(200, {
      "content-type": TYPES[suffix] ?? "application/octet-stream",
      "cache-control": "no-cache",
      "x-content-type-options": "nosniff",
      ...(squeeze ? { "content-encoding": "gzip" } : { "content-length": statSync(file).size }),
      ...headers,
    });
    const stream = createReadStream(file);
    (squeeze ? stream.pipe(createGzip()) : stream).pipe(response);
  });
  return new Promise((resolve) => {
    server.listen(port, "127.0.0.1", () => {
      const address = server.address();
      resolve({
        url: `http://127.0.0.1:${address.port}/`,
        close: () => new Promise((closed) => (server.closeAllConnections(), server.close(closed))),
      });
    });
  });
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const { url } = await serve({ port: Number(process.argv[2] ?? 4173) });
  console.log(url);
}
