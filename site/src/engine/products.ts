/** What the build made for the engine: addresses below the page's own, put in by vite. */
export interface Products {
  /** The version of memcheck that the page carries. */
  version: string;
  /** What Pyodide checks of its list of packages, of which the page uses none. */
  packages: Record<string, string>;
  loader: string;
  glue: string;
  runtime: string;
  library: string;
  engine: string;
}

declare const __PRODUCTS__: Products;
export const products: Products = __PRODUCTS__;
