/** The page's entry. */
import { render } from "preact";
import "./style/page.css";
import { App } from "./app.tsx";
import { startClient } from "./engine/client.ts";
import { show, theme } from "./frame/theme.ts";
import { ask, connect, lane, text } from "./session.ts";

show(theme.value);
const root = document.getElementById("page");
if (root) render(<App />, root);
connect(startClient({ state: (state) => (lane.value = state) }));
const { exampleNamed } = await import("./share/examples.ts");
text.value = exampleNamed("llama-3.1-8b-fsdp-8xh100")?.text ?? "";
ask();
