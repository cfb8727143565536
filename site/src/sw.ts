/**
 * The service worker: the page works without a network after one visit. It stores the files of one build, answers with
 * them, and stores nothing else. A newer build waits until the reader asks for it.
 */

export {};

declare const __STORED__: {
  /** Names the build. */
  version: string;
  /** Addresses below the page's own. */
  files: string[];
};
declare const self: ServiceWorkerGlobalScope;

const PREFIX = "memcheck-";
const NAME = PREFIX + __STORED__.version;
const PAGE = new URL("./", self.location.href).href;
const STORED = new Set(__STORED__.files.map((file) => new URL(file, PAGE).href));

self.addEventListener("install", (event) => event.waitUntil(store()));
self.addEventListener("activate", (event) => event.waitUntil(forget()));
self.addEventListener("message", (event) => {
  if (event.data === "take over") event.waitUntil(self.skipWaiting());
});
self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  const address = event.request.mode === "navigate" ? page(event.request.url) : event.request.url.split("#", 1)[0];
  if (address !== undefined && STORED.has(address)) event.respondWith(answer(address, event.request));
});

/** The address of the page, if this is it, with whatever stands behind `?`. */
function page(url: string): string | undefined {
  const plain = url.split(/[?#]/u, 1)[0];
  return plain === PAGE || plain === `${PAGE}index.html` ? PAGE : undefined;
}

async function answer(address: string, request: Request): Promise<Response> {
  const stored = await (await caches.open(NAME)).match(address);
  return stored ?? fetch(request);
}

/** Store all files. Those that an older build has under the same name are the same, since a name holds a hash. */
async function store(): Promise<void> {
  const cache = await caches.open(NAME);
  const older = await caches.keys();
  for (const address of STORED) {
    if (await cache.match(address)) continue;
    const hashed = /-[\w-]{8,}\.[\w.]+$/u.test(address);
    let found: Response | undefined;
    for (const name of hashed ? older : []) found ??= await (await caches.open(name)).match(address);
    found ??= await fetch(address, { cache: hashed ? "force-cache" : "no-cache", credentials: "omit" });
    if (!found.ok) throw new Error(`${address}: the server answers ${found.status}`);
    await cache.put(address, found);
  }
}

/** Drop what older builds have stored. */
async function forget(): Promise<void> {
  for (const name of await caches.keys()) {
    if (name.startsWith(PREFIX) && name !== NAME) await caches.delete(name);
  }
}
