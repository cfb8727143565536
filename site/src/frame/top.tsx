/** The header: what the page is, where plans come from, what can be done with one, and how the engine does. */
import { lane } from "../session.ts";
import { FolderState } from "../share/folder.tsx";
import { Icon, Mark } from "./icons.tsx";
import { NetworkState } from "./network.tsx";
import { type Group, Menu } from "./menu.tsx";
import { turn } from "./theme.ts";

export interface Actions {
  plan: readonly Group[];
  export: readonly Group[];
  suggest: readonly Group[];
  compare: () => void;
  sweep: () => void;
  share: () => void;
}

export function Top({ actions }: { actions: Actions }) {
  const all: Group[] = [
    { title: "Show", entries: [{ label: "Compare with another plan", run: actions.compare }, { label: "Sweep two keys", run: actions.sweep }, { label: "Light or dark", run: turn }] },
    ...actions.plan,
    ...actions.suggest,
    ...actions.export,
  ];
  return (
    <header class="top">
      <h1><Mark />memcheck</h1>
      <span class="wide-only row-of-buttons">
        <Menu id="menu-plan" label="Plan" icon="plan" groups={actions.plan}>Plan</Menu>
      </span>
      <EngineState />
      <FolderState />
      <NetworkState />
      <span class="push" />
      <span class="wide-only row-of-buttons">
        <Menu id="menu-suggest" label="Suggest" icon="bulb" groups={actions.suggest}>Suggest</Menu>
        <button type="button" class="button plain" onClick={actions.compare}><Icon name="compare" />Compare</button>
        <button type="button" class="button plain" onClick={actions.sweep}><Icon name="sweep" />Sweep</button>
      </span>
      <button type="button" class="button plain" onClick={actions.share}><Icon name="share" />Share</button>
      <span class="wide-only row-of-buttons">
        <Menu id="menu-export" label="Export" icon="export" groups={actions.export}>Export</Menu>
        <button type="button" class="button plain square" aria-label="Light or dark" title="Light or dark" onClick={turn}><Icon name="theme" /></button>
      </span>
      <span class="narrow-only"><Menu id="menu-all" label="Everything else" icon="more" groups={all} /></span>
    </header>
  );
}

/** One line about the engine while it is not there; nothing once it is. */
function EngineState() {
  const now = lane.value;
  if (now.phase === "ready") return null;
  if (now.phase === "loading") {
    const whole = now.totalBytes > 0 && now.loadedBytes >= now.totalBytes;
    const mb = (bytes: number): string => (bytes / 1e6).toFixed(1);
    return (
      <span class="status">
        <span>{whole ? "Starting Python" : `Loading the engine${now.totalBytes ? `: ${mb(now.loadedBytes)} of ${mb(now.totalBytes)} MB` : ""}`}</span>
        {whole || !now.totalBytes ? <progress aria-label="Engine" /> : <progress aria-label="Engine" max={now.totalBytes} value={now.loadedBytes} />}
      </span>
    );
  }
  return <span class="status"><span class="dot off" /><span>{now.phase === "restarting" ? "The engine starts again" : "The engine does not run"}</span></span>;
}
