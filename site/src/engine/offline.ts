/** What the page knows of its service worker: whether it works without a network, and whether a newer build waits. */
import { serviceAddress } from "./trusted.ts";

export type Offline =
  /** All files are stored: the next visit needs no network. */
  | "stored"
  /** A newer build is stored and waits for the reader. */
  | "newer";

let waiting: ServiceWorker | null = null;

/** Store the page for visits without a network; call it when the engine runs, since it loads the same files. */
export async function keepOffline(told: (state: Offline) => void): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  let registration: ServiceWorkerRegistration;
  try {
    registration = await navigator.serviceWorker.register(serviceAddress());
  } catch {
    return; // private windows and some policies forbid it; the page works without
  }
  const look = (): void => {
    waiting = registration.active ? registration.waiting : null;
    if (waiting) told("newer");
    else if (registration.active) told("stored");
  };
  registration.addEventListener("updatefound", () => registration.installing?.addEventListener("statechange", look));
  registration.installing?.addEventListener("statechange", look);
  look();
}

/** A browser lets an older build finish its requests, and may wait for minutes. The page is loaded again after this long. */
const TAKE_OVER_MS = 5_000;

/** Change to the newer build that waits, and load the page again. */
export function takeNewer(): void {
  const reload = (): void => location.reload();
  navigator.serviceWorker.addEventListener("controllerchange", reload, { once: true });
  setTimeout(reload, TAKE_OVER_MS);
  waiting?.postMessage("take over");
}
