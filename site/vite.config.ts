import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

/** The addresses of what `build/build.mjs` made before; see `src/engine/products.ts`. */
const made = (name: string): string => readFileSync(new URL(`.build/${name}`, import.meta.url), "utf8");
const products: unknown = JSON.parse(made("products.json"));

/** Everything comes from the page's own origin, and no text becomes code. `docs/page.md` says why each part is there. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "connect-src 'self'",
  "worker-src 'self'",
  "manifest-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types memcheck",
].join("; ");

/** The policy as the first thing in the page, and the answer to the first plan in its body. */
const page: Plugin = {
  name: "memcheck-page",
  apply: "build",
  transformIndexHtml: {
    order: "post",
    handler: (html) =>
      html
        .replace(/<meta charset="utf-8" ?\/?>/u, (charset) => `${charset}\n    <meta http-equiv="Content-Security-Policy" content="${POLICY}">`)
        .replace('<div id="page"></div>', () => `<div id="page">${made("drawn.html")}</div>${made("data.html")}`),
  },
};

export default defineConfig({
  base: "./",
  plugins: [page],
  publicDir: ".build/public",
  define: { __PRODUCTS__: JSON.stringify(products) },
  worker: { format: "es" },
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    manifest: true,
  },
});
