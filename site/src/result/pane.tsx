/** The result: what was asked for, then the engine's sections. Those of the answer itself share a card. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import { found, searching } from "../search.ts";
import { good, set, stale, text, type Answer } from "../session.ts";
import { tell } from "../frame/toast.tsx";
import { remarks } from "../share/importing.ts";
import { restore } from "../share/incoming.ts";
import type { SectionHead, Value } from "../types.ts";
import { withApply, withUse } from "./apply.ts";
import { CompareButtons } from "./compare.tsx";
import { EngineNotice } from "./engine-notice.tsx";
import { closeExtra, extras } from "./extras.ts";
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
    const all = [...found.value.remedies, ...(extras.value["suggest"]?.remedies ?? [])];
    const remedy = all.find((each) => each.id === apply);
    if (remedy) change(remedy.changes as Readonly<Record<string, Value>>, `Applied: ${remedy.title}`);
  } else if (gpu !== undefined) change({ "hardware.gpu": gpu }, `The plan runs on ${gpu} now.`);
  else takeCell(Number(row), Number(column));
}

export function ResultPane() {
  const pane = useRef<HTMLElement>(null);
  useEffect(() => pane.current?.addEventListener("click", act), []);
  return (
    <section ref={pane} class="pane-result" id="pane-result" aria-label="Result" tabIndex={-1}>
      <h2 class="unseen">Result</h2>
      <EngineNotice />
      <Remarks />
      <Trouble />
      <Extras />
      {good.value && <Sections answer={good.value} />}
    </section>
  );
}

function Sections({ answer }: { answer: Answer }) {
  const now = found.value;
  const own = now.of === answer.id;
  // Until there is something newer, what was found for the answer before stays in its place, dimmed and out of reach.
  const kept: Readonly<Record<string, string>> = own ? now.html : Object.fromEntries(SEARCHED.map((id) => [id, now.html[id] ?? ""]));
  const html = { ...answer.html, ...kept };
  const order = own && now.order.length ? now.order : withKept(answer.order, now.order);
  const adorn = useMemo(() => ({
    remedies: (body: HTMLElement) => withApply(body, new Set(now.remedies.map((each) => each.id))),
    gpus: (body: HTMLElement) => withUse(body),
  }), [now.remedies]);
  const draw = (head: SectionHead) => {
    const searched = SEARCHED.includes(head.id);
    const add = searched ? adorn[head.id as keyof typeof adorn] : undefined;
    return (
      <Section key={head.id} id={head.id} half={head.half} html={html[head.id] ?? ""} old={searched && !own} {...(add ? { adorn: add } : {})} />
    );
  };
  const rest = order.filter(({ id }) => !ANSWER.has(id) && !ELSEWHERE.has(id));
  const cut = rest.findIndex(({ id }) => SEARCHED.includes(id) || id === BEFORE);
  const at = cut < 0 ? rest.length : cut;
  const none = own && now.tried && !now.remedies.length && answer.first.verdict.tone === "bad" && !answer.first.verdict.fails;
  return (
    <div class="sections" data-old={stale.value || undefined}>
      <div class="card answer">
        {order.filter(({ id }) => ANSWER.has(id) && html[id]).map(draw)}
      </div>
      {rest.slice(0, at).map(draw)}
      {searching.value && <p class="card searching" key="searching" role="status"><span class="spinner" />{searching.value}</p>}
      {none && <p class="card" key="none"><b>No change that memcheck knows makes this plan fit.</b> Try another model, more GPUs, or a shorter sequence.</p>}
      {rest.slice(at).map(draw)}
    </div>
  );
}

/** The order of an answer with the searched sections of the one before. */
function withKept(order: readonly SectionHead[], before: readonly SectionHead[]): readonly SectionHead[] {
  const kept = before.filter(({ id }) => SEARCHED.includes(id) && !order.some((head) => head.id === id));
  const at = order.findIndex(({ id }) => id === BEFORE);
  return at < 0 ? [...order, ...kept] : [...order.slice(0, at), ...kept, ...order.slice(at)];
}

/** What was asked for: a comparison, a heat map, suggestions, why a run ended. */
function Extras() {
  return (
    <div class="sections extras">
      {Object.entries(extras.value).map(([id, extra]) => (
        <div class="card" key={id}>
          <div class="row">
            <h3>{extra.title}</h3>
            {id === "comparison" ? <CompareButtons /> : <button type="button" class="button" onClick={() => (id === "sweep" ? stopSweep() : closeExtra(id))}>Close</button>}
          </div>
          {extra.doing && <p class="searching" role="status"><span class="spinner" />{extra.doing}</p>}
          {extra.failed && <p role="alert">{extra.failed}</p>}
          <Section id={id} html={extra.html} adorn={id === "sweep" ? withCells : withChanges} />
        </div>
      ))}
    </div>
  );
}

/** "Apply" in the suggestions that are shown. */
function withChanges(body: HTMLElement): void {
  withApply(body, new Set((extras.value["suggest"]?.remedies ?? []).map((each) => each.id)));
}

/** What a plan that was made of another file does not carry, and what was assumed. */
function Remarks() {
  const now = remarks.value;
  if (!now) return null;
  return (
    <details class="notice tone-note" open>
      <summary>{now.title}: {now.lines.length} {now.lines.length === 1 ? "note" : "notes"}</summary>
      <ul>{now.lines.map((line) => <li key={line}>{line}</li>)}</ul>
    </details>
  );
}
