/** The page: header, verdict, and three panes, which are tabs on a narrow screen. */
import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { actions, Dialogs } from "./actions.tsx";
import { YamlPane } from "./editor/pane.tsx";
import { FormPane } from "./form/form.tsx";
import { Toast } from "./frame/toast.tsx";
import { Top } from "./frame/top.tsx";
import { ResultPane } from "./result/pane.tsx";
import { found } from "./search.ts";
import { VerdictStrip } from "./result/verdict.tsx";
import { ask, busy, chosen, lane, latest, stale } from "./session.ts";

const TABS = [["form", "Plan"], ["result", "Result"], ["yaml", "YAML"]] as const;
export const tab = signal<(typeof TABS)[number][0]>("form");
const narrow = signal(false);

export function App() {
  useEffect(() => {
    const query = matchMedia("(max-width: 999px)");
    const look = (): void => void (narrow.value = query.matches);
    look();
    query.addEventListener("change", look);
    return () => query.removeEventListener("change", look);
  }, []);
  const form = useMemo(() => <FormPane />, []);
  const result = useMemo(() => <ResultPane />, []);
  const yaml = useMemo(() => <YamlPane />, []);
  return (
    <>
      <a class="skip" href="#pane-result">Skip to the result</a>
      <Top actions={actions()} />
      <main class="panes" data-tab={tab.value} data-engine={lane.value.phase} data-answer={latest.value?.id} data-busy={busy.value || undefined} data-stale={stale.value || undefined}>
        <div class="crown">
          <Documents />
          <VerdictStrip />
          {narrow.value && <Tabs />}
        </div>
        {form}
        <div class="pane-body">
          {result}
          {yaml}
        </div>
      </main>
      {narrow.value && tab.value === "form" && <Help />}
      <Dialogs />
      <Toast />
    </>
  );
}

function walk(event: KeyboardEvent): void {
  const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!to) return;
  const list = event.currentTarget as HTMLElement;
  const all = [...list.querySelectorAll<HTMLButtonElement>('[role="tab"]')];
  const next = all[(all.indexOf(document.activeElement as HTMLButtonElement) + to + all.length) % all.length];
  next?.focus();
  next?.click();
}

function Tabs() {
  return (
    <div class="tabs" role="tablist" aria-label="Parts of the page" onKeyDown={walk}>
      {TABS.map(([name, words]) => (
        <button type="button" role="tab" key={name} aria-selected={tab.value === name} aria-controls={`pane-${name}`}
          tabIndex={tab.value === name ? 0 : -1} onClick={() => (tab.value = name)}>{words}</button>
      ))}
    </div>
  );
}

/** The plans of a file, where it has several. */
function Documents() {
  const all = latest.value?.first.documents ?? [];
  if (all.length < 2) return null;
  return (
    <div class="documents" role="tablist" aria-label="Plans of the file" onKeyDown={walk}>
      {all.map((each) => (
        <button type="button" role="tab" key={each.document} aria-selected={each.document === chosen.value} class={`tone-${each.verdict.tone}`}
          tabIndex={each.document === chosen.value ? 0 : -1} onClick={() => { chosen.value = each.document; ask(); }}>
          {each.name} <small>{each.used || each.verdict.word}</small>
        </button>
      ))}
    </div>
  );
}

/** On a narrow screen, the way from the controls to the changes that help. */
function Help() {
  const count = found.value.of === latest.value?.id ? found.value.remedies.length : 0;
  if (!count || latest.value?.first.verdict.tone === "good") return null;
  const go = (): void => {
    tab.value = "result";
    setTimeout(() => document.getElementById("section-remedies")?.scrollIntoView());
  };
  return (
    <button type="button" class="button main help-bar" onClick={go}>{count === 1 ? "1 change helps" : `${count} changes help`}</button>
  );
}
