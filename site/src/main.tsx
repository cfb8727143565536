/** The page's entry. */
import { render } from "preact";
import "./style/page.css";
import { App } from "./app.tsx";
import { startClient, type Step } from "./engine/client.ts";
import { watchNetwork } from "./frame/network.tsx";
import { showTheme, theme } from "./frame/theme.ts";
import { Native, tokenOf } from "./engine/native.ts";
import { compare } from "./result/compare.tsx";
import { able } from "./result/engine-notice.tsx";
import { searchSoon } from "./search.ts";
import { ask, connect, lane, listeners, paint, text } from "./session.ts";
import { arrive, seek } from "./share/arrive.ts";
import { exampleNamed } from "./share/examples-index.ts";
import { onDrop } from "./share/files.ts";
import { openFolder } from "./share/folder.tsx";
import { show, takeFiles } from "./share/incoming.ts";

/** The example that a first visit shows. */
const FIRST = "llama-3.1-8b-fsdp-8xh100";

showTheme(theme.value);
listeners.answered = () => {
  searchSoon();
  compare();
  setTimeout(seek);
};
paintFirst();
const root = document.getElementById("page");
root?.replaceChildren();
if (root) render(<App />, root);
const token = tokenOf(location.hash);
const native = token ? new Native(token) : null;
if (able || native) connect(startClient({ state: (state) => (lane.value = state), ...(native ? { start: (name) => native.port(name), two: true } : {}) }));
onDrop((files) => void takeFiles(files), (over) => document.body.classList.toggle("dropping", over));
if (native) void openFolder(native);
else {
  watchNetwork();
  void begin();
}
addEventListener("hashchange", () => void arrive(location.hash));

/** Show what the address asks for, else the example. */
async function begin(): Promise<void> {
  if (await arrive(location.hash)) return;
  if (text.value) ask();
  else {
    const first = await exampleNamed(FIRST);
    if (first) show(`${first.name}.yaml`, first.text);
  }
}

/**
 * The example and its answer, which the build writes into the page as JSON: `{"name", "text", "steps"}` with the steps
 * `first`, `form` and `choices` of `memcheck.live`. It is readable before a byte of the engine has come.
 */
function paintFirst(): void {
  const written = document.getElementById("painted")?.textContent;
  if (!written) return;
  const { name, text, steps } = JSON.parse(written) as { name: string; text: string; steps: Step[] };
  paint(name, text, steps);
}
