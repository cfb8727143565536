/** Sections that are asked for: a comparison, a heat map. They stand above the plan's own until they are closed. */
import { signal } from "@preact/signals";
import type { RemedyEdits } from "../types.ts";

export interface Extra {
  title: string;
  html: string;
  /** What is being done, while it is not finished. */
  doing: string;
  /** Why there is nothing to show. */
  failed?: string;
  /** Changes in the HTML that can be applied. */
  remedies?: readonly RemedyEdits[];
}

export const extras = signal<Readonly<Record<string, Extra>>>({});

export function showExtra(id: string, extra: Extra): void {
  extras.value = { ...extras.value, [id]: extra };
}

export function closeExtra(id: string): void {
  const { [id]: _gone, ...rest } = extras.value;
  extras.value = rest;
}
