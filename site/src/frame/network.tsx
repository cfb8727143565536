/** Quiet signs in the header: without a network, and a newer page that waits for the reader. */
import { effect, signal } from "@preact/signals";
import { keepOffline, takeNewer } from "../engine/offline.ts";
import { engine, ready } from "../session.ts";

const online = signal(navigator.onLine);
const newer = signal(false);

/** Keep the page for visits without a network, once the engine runs. */
export function watchNetwork(): void {
  addEventListener("online", () => (online.value = true));
  addEventListener("offline", () => (online.value = false));
  const stop = effect(() => {
    if (!ready.value) return;
    queueMicrotask(() => stop());
    void keepOffline((state) => (newer.value = state === "newer"));
  });
}

/** End the engine, whose requests would keep the older build at work, and change to the newer one. */
function change(): void {
  engine()?.close();
  takeNewer();
}

export function NetworkState() {
  return (
    <>
      {!online.value && <span class="status" title="The page works without a network"><span class="dot off" /><span>offline</span></span>}
      {newer.value && <button type="button" class="small-button" onClick={change}>New version: reload</button>}
    </>
  );
}
