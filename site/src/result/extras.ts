/** Sections that are asked for: a comparison, a heat map. They stand above the plan's own until they are closed. */
import { signal } from "@preact/signals";

export interface Extra {
  title: string;
  html: string;
  /** What is being done, while it is not finished. */
  doing: string;
}

export const extras = signal<Readonly<Record<string, Extra>>>({});

export function showExtra(id: string, extra: Extra): void {
  extras.value = { ...extras.value, [id]: extra };
}

export function closeExtra(id: string): void {
  const { [id]: _gone, ...rest } = extras.value;
  extras.value = rest;
}
