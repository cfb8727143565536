/** The result: what was asked for, then the engine's sections. Those of the answer itself share a card. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import { found, searching } from "../search.ts";
import { good, set, stale, text, type Answer } from "../session.ts";
import { tell } from "../frame/toast.tsx";
import { restore } from "../share/incoming.ts";
import type { Value } from "../types.ts";
import { withApply, withUse } from "./apply.ts";
import { CompareButtons } from "./compare.tsx";
import { EngineNotice } from "./engine-notice.tsx";
import { extras } from "./extras.ts";
import { Section } from "./result.tsx";
import { stopSweep, takeCell, withCells } from "./sweep.tsx";
import { Trouble } from "./trouble.tsx";

/** Shown elsewhere: the bar above all, the plans of the file as tabs. */
const ELSEWHERE = new Set(["bar", "index"]);
const ANSWER = new Set(["lead", "advice", "facts"]);
/** Sections that are searched after the answer, and the one that they stand before. */
const SEARCHED = ["remedies", "gpus"];
const BEFORE = "ranks";

/** A change that the toast takes back. */
function change(values: Readonly<Record<string, Value | undefined>>, told: string): void {
  const before = text.value;
  set(values);
  tell(told, { label: "Undo", run: () => restore(before) });
}

/** What the page's own buttons in the engine's HTML do. */
function act(event: MouseEvent): void {
  const pressed = (event.target as Element).closest<HTMLButtonElement>("button[data-apply], button[data-gpu], button[data-row]");
  if (!pressed) return;
  const { apply, gpu, row, column } = pressed.dataset;
  if (apply !== undefined) {
    const changes = found.value.changes.get(apply);
    if (changes) change(changes, `Applied: ${found.value.titles.get(apply) ?? apply}`);
  } else if (gpu !== undefined) change({ "hardware.gpu": gpu }, `The plan runs on ${gpu} now.`);
  else takeCell(Number(row), Number(column));
}

export function ResultPane() {
  const pane = useRef<HTMLElement>(null);
  useEffect(() => pane.current?.addEventListener("click", act), []);
  return (
    <section ref={pane} class="pane-result" id="pane-result" aria-label="Result" tabIndex={-1}>
      <EngineNotice />
      <Trouble />
      <Extras />
      {good.value && <Sections answer={good.value} />}
    </section>
  );
}

function Sections({ answer }: { answer: Answer }) {
  const { html, order } = answer;
  const now = found.value;
  const apply = useMemo(() => (body: HTMLElement) => withApply(body, new Set(now.changes.keys())), [now]);
  const use = useMemo(() => (body: HTMLElement) => withUse(body), []);
  const rest = order.filter(({ id }) => !ANSWER.has(id) && !ELSEWHERE.has(id) && !SEARCHED.includes(id));
  const at = rest.findIndex(({ id }) => id === BEFORE);
  const cut = at < 0 ? rest.length : at;
  const old = now.of !== answer.id;
  const draw = (heads: typeof rest) => heads.map((head) => <Section key={head.id} id={head.id} half={head.half} html={html[head.id] ?? ""} />);
  return (
    <div class="sections" data-old={stale.value || undefined}>
      <div class="card answer">
        {order.filter(({ id }) => ANSWER.has(id) && html[id]).map((head) => <Section key={head.id} id={head.id} html={html[head.id] ?? ""} />)}
      </div>
      {draw(rest.slice(0, cut))}
      {searching.value && <p class="card searching" key="searching"><span class="spinner" />{searching.value}</p>}
      <div class="searched" key="searched" data-old={old || undefined} inert={old}>
        {now.html["remedies"] && <Section key="remedies" id="remedies" html={now.html["remedies"]} adorn={apply} />}
        {now.html["gpus"] && <Section key="gpus" id="gpus" html={now.html["gpus"]} adorn={use} />}
      </div>
      {draw(rest.slice(cut))}
    </div>
  );
}

/** A comparison and a heat map, where they are asked for. */
function Extras() {
  const { comparison, sweep } = extras.value;
  return (
    <div class="sections">
      {comparison && (
        <div class="card" key="comparison">
          <div class="row"><h3>{comparison.title}</h3><CompareButtons /></div>
          {comparison.doing && <p class="searching"><span class="spinner" />{comparison.doing}</p>}
          <Section id="comparison" html={comparison.html} />
        </div>
      )}
      {sweep && (
        <div class="card" key="sweep">
          <div class="row"><h3>{sweep.title}</h3><button type="button" class="button" onClick={stopSweep}>Close</button></div>
          {sweep.doing && <p class="searching"><span class="spinner" />{sweep.doing}</p>}
          <Section id="sweep" html={sweep.html} adorn={withCells} />
        </div>
      )}
    </div>
  );
}
