/** What the header offers, and the dialogs behind it. */
import { close, dialog, open } from "./frame/dialogs.ts";
import type { Actions } from "./frame/top.tsx";
import { GOALS, suggest, why } from "./result/ask.ts";
import { CompareDialog } from "./result/compare.tsx";
import { SweepDialog } from "./result/sweep.tsx";
import { Examples } from "./share/examples-dialog.tsx";
import { Paste } from "./share/paste.tsx";
import { config, picture, report } from "./share/exporting.ts";
import { choose, read } from "./share/files.ts";
import { takeExample, takeFiles } from "./share/incoming.ts";
import { download } from "./share/download.ts";
import { Share } from "./share/share.tsx";
import { Conflict, folder, openPlan, save, unsaved } from "./share/folder.tsx";
import { path, text } from "./session.ts";

const made: Actions = {
  plan: [
    {
      title: "Start from",
      entries: [
        { label: "Examples", hint: "Plans that teach something, half of which fail", run: open("examples") },
        { label: "Open files", hint: "A plan, a config, a script; more can be dropped on the page", run: () => void choose().then((files) => takeFiles(files)) },
        { label: "Paste", hint: "A config, a script, a command line, a model's config.json", run: open("paste") },
      ],
    },
    {
      title: "A run that died",
      entries: [
        { label: "Why did it end?", hint: "From its log", run: () => void choose(false).then(read).then(({ files }) => files[0] && why(files[0].text)) },
      ],
    },
  ],
  export: [
    {
      title: "This plan",
      entries: [
        { label: "Plan (YAML)", run: () => download(path.value, text.value, "application/yaml") },
        { label: "Print or PDF", hint: "Every part, black on white", run: () => print() },
      ],
    },
    {
      title: "Report",
      entries: [
        { label: "HTML", hint: "One file that loads nothing", run: () => report("html") },
        { label: "Markdown", run: () => report("markdown") },
        { label: "JSON", run: () => report("json") },
        { label: "CSV", run: () => report("csv") },
      ],
    },
    {
      title: "Picture of the bar",
      entries: [{ label: "PNG", run: () => void picture("png") }, { label: "SVG", run: () => void picture("svg") }],
    },
    {
      title: "Config of a framework",
      entries: [["DeepSpeed", "deepspeed"], ["Accelerate", "accelerate"], ["torchtitan", "torchtitan"], ["Megatron", "megatron"]].map(
        ([label, format]) => ({ label: label!, run: () => config(format!) }),
      ),
    },
  ],
  suggest: [{ title: "Search for", entries: GOALS.map(([goal, told]) => ({ label: told, run: () => suggest(goal, told) })) }],
  compare: open("compare"),
  sweep: open("sweep"),
  share: open("share"),
};

/** What the header offers now: in `memcheck ui` the plans of the folder, too. */
export function actions(): Actions {
  const here = folder.value;
  if (!here) return made;
  const plans = here.plans.map((plan) => ({ label: plan.path, run: () => void openPlan(plan.path) }));
  const saved = unsaved.value ? [{ label: `Save ${path.value}`, run: () => void save() }] : [];
  return { ...made, plan: [{ title: `Plans of ${here.name}`, entries: [...saved, ...plans] }, ...made.plan] };
}

export function Dialogs() {
  return (
    <>
      <Conflict />
      <Open />
    </>
  );
}

function Open() {
  switch (dialog.value) {
    case "examples":
      return <Examples close={close} take={(example) => { close(); takeExample(example); }} />;
    case "share":
      return <Share close={close} />;
    case "compare":
      return <CompareDialog close={close} />;
    case "sweep":
      return <SweepDialog close={close} />;
    case "paste":
      return <Paste close={close} />;
    default:
      return null;
  }
}
