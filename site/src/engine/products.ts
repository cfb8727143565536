/** What the build made for the engine, put in by vite. */
export interface Products {
  /** The version of memcheck that the page carries. */
  version: string;
  /** What Pyodide checks of its list of packages, of which the page uses none. */
  packages: Record<string, string>;
  loader: Product;
  glue: Product;
  runtime: Product;
  library: Product;
  engine: Product;
  snapshot: Product;
  /** Names of models and GPUs, for the search. */
  catalog: Product;
}

/** One file: its address below the page's own, and its compressed bytes. */
export interface Product {
  path: string;
  bytes: number;
}

declare const __PRODUCTS__: Products;
export const products: Products = __PRODUCTS__;
