/** What is searched once the verdict stands: remedies, other GPUs, and what each line is responsible for. */
import { signal } from "@preact/signals";

/** How full the plan makes each GPU that was tried, the plan's own first. It stays until there are newer ones. */
export const gpuCards = signal<ReadonlyMap<string, { share: string; tone: string; word: string }>>(new Map());
