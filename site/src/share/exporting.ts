/** What can be taken away: reports in the engine's formats, configs of frameworks, and the bar as a picture. */
import { tell } from "../frame/toast.tsx";
import { engine, latest, path, plan } from "../session.ts";
import { remarks } from "./importing.ts";
import { download } from "./download.ts";
import { pngPicture, svgPicture } from "./picture.ts";

const TYPES: Readonly<Record<string, [suffix: string, type: string]>> = {
  json: ["json", "application/json"],
  csv: ["csv", "text/csv"],
  markdown: ["md", "text/markdown"],
  html: ["html", "text/html"],
};

function stem(): string {
  return (path.value.split("/").at(-1) ?? "plan").replace(/\.ya?ml$/, "");
}

function failed(step: Readonly<Record<string, unknown>>): void {
  tell(`${String(step["message"])}. ${String(step["help"])}`);
}

/** Download a report as `memcheck check --format` writes it. */
export function report(format: string): void {
  const [suffix, type] = TYPES[format] ?? ["txt", "text/plain"];
  void engine()?.search({
    slot: "report",
    request: { do: "report", ...plan(), format },
    step(step) {
      if (step.step === "failed") failed(step);
      if (step.step === "reported") download(`${stem()}.${suffix}`, String(step["text"]), type);
    },
  });
}

/** Download a framework's config that runs the plan. */
export function config(format: string): void {
  void engine()?.answer({
    slot: "export",
    request: { do: "export", ...plan(), format },
    step(step) {
      if (step.step === "failed") failed(step);
      if (step.step !== "exported") return;
      download(String(step["name"]), String(step["text"]));
      const notices = step["notices"] as string[];
      remarks.value = notices.length ? { title: `What the config of ${format} does not say`, lines: notices } : null;
    },
  });
}

/** Download the bar of the verdict as a picture. */
export async function picture(kind: "png" | "svg"): Promise<void> {
  const bar = document.querySelector<SVGSVGElement>(".crown-bar svg");
  const now = latest.value?.first;
  if (!bar || !now) return;
  const svg = svgPicture(bar, `${now.name}: ${now.verdict.word}`, now.lead);
  if (kind === "svg") download(`${stem()}.svg`, svg, "image/svg+xml");
  else download(`${stem()}.png`, await pngPicture(svg));
}
