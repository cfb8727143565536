/** The page's entry. */
import { render } from "preact";
import "./style/page.css";
import { App } from "./app.tsx";
import { startClient } from "./engine/client.ts";
import { showTheme, theme } from "./frame/theme.ts";
import { Native, tokenOf } from "./engine/native.ts";
import { connect, lane, text } from "./session.ts";
import { onDrop } from "./share/files.ts";
import { openFolder } from "./share/folder.tsx";
import { show, takeFiles } from "./share/incoming.ts";

/** The example that a first visit shows. */
const FIRST = "llama-3.1-8b-fsdp-8xh100";

showTheme(theme.value);
const root = document.getElementById("page");
if (root) render(<App />, root);
const token = tokenOf(location.hash);
const native = token ? new Native(token) : null;
connect(startClient({ state: (state) => (lane.value = state), ...(native ? { start: (name) => native.port(name), two: true } : {}) }));
onDrop((files) => void takeFiles(files), (over) => document.body.classList.toggle("dropping", over));
if (native) void openFolder(native);
else {
  const { exampleNamed } = await import("./share/examples.ts");
  const first = exampleNamed(FIRST);
  if (first && !text.value) show(`${first.name}.yaml`, first.text);
}
