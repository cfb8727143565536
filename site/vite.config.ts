import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

/** The addresses of what `build/build.mjs` made before; see `src/engine/products.ts`. */
const products: unknown = JSON.parse(readFileSync(new URL(".build/products.json", import.meta.url), "utf8"));

export default defineConfig({
  base: "./",
  publicDir: ".build/public",
  define: { __PRODUCTS__: JSON.stringify(products) },
  worker: { format: "es" },
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: "licences-of-scripts.md" },
  },
});
