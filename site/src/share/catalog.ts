/** Names to choose from, made with the page: the models of the catalog, loaded when the search is first used. */
import { signal } from "@preact/signals";
import { products } from "../engine/products.ts";

export interface CatalogModel {
  name: string;
  /** The name on Hugging Face. */
  id: string;
  model_type: string;
  parameters: number;
}

export const catalog = signal<readonly CatalogModel[] | null>(null);
let asked: Promise<void> | null = null;

export function loadCatalog(): Promise<void> {
  asked ??= (async () => {
    const response = await fetch(new URL(products.catalog.path, document.baseURI));
    const found = (await response.json()) as { models: CatalogModel[] };
    catalog.value = found.models;
  })();
  return asked;
}

/** A number of parameters in words, as the reports have it: 8.03 billion. */
export function counted(parameters: number): string {
  for (const [size, name] of [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]] as const) {
    if (parameters >= size) return `${(parameters / size).toFixed(2)} ${name}`;
  }
  return parameters.toLocaleString("en");
}
