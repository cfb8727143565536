/** A short message at the bottom, with at most one thing to do about it. */
import { signal } from "@preact/signals";

interface Message {
  text: string;
  action?: { label: string; run: () => void };
}

const LASTS_MS = 9000;
const message = signal<Message | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;

export function tell(text: string, action?: Message["action"]): void {
  message.value = action ? { text, action } : { text };
  clearTimeout(timer);
  timer = setTimeout(() => (message.value = null), LASTS_MS);
}

export function Toast() {
  const now = message.value;
  return (
    <div role="status" aria-live="polite">
      {now && (
        <div class="toast">
          <span>{now.text}</span>
          {now.action && (
            <button type="button" class="button" onClick={() => { message.value = null; now.action?.run(); }}>{now.action.label}</button>
          )}
        </div>
      )}
    </div>
  );
}
