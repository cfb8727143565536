/** The page's entry. */
import { signal } from "@preact/signals";
import { render } from "preact";
import { startClient, type LaneState } from "./engine/client.ts";

const state = signal<LaneState>({ phase: "loading", loadedBytes: 0, totalBytes: 0 });
const answer = signal("");
const client = startClient({ state: (now) => (state.value = now) });
const text = new URL(location.href).searchParams.get("text");
if (text) {
  void client.answer({
    slot: "answer",
    request: { do: "answer", path: "plan.yaml", text },
    step: (step) => (answer.value = JSON.stringify(step)),
  });
}

function Page() {
  return (
    <>
      <p role="status">{state.value.phase}</p>
      <pre>{answer}</pre>
    </>
  );
}

const root = document.getElementById("page");
if (root) render(<Page />, root);
