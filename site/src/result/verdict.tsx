/** The verdict: sign, word, figures and bar, which stay in sight while everything else moves. */
import { useEffect, useRef } from "preact/hooks";
import { useComputed, useSignal } from "@preact/signals";
import { good, latest, stale } from "../session.ts";
import { morph } from "./morph.ts";

const SIGNS: Readonly<Record<string, string>> = { good: "✓", warn: "!", bad: "✕", note: "i" };
const QUIET_MS = 700;
const GIB = 2 ** 30;

/** Bytes in GiB as the reports print them. */
export function gib(bytes: number): string {
  return (bytes / GIB).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

export function VerdictStrip() {
  const now = latest.value?.first;
  if (!now) return null;
  const figures = now.figures;
  return (
    <section class={`verdict tone-${now.verdict.tone}`} aria-label="Verdict">
      <div class="say">
        <span class="word"><span class="sign" aria-hidden="true">{SIGNS[now.verdict.tone] ?? "i"}</span>{now.verdict.word}</span>
        {figures && (
          <>
            <span class="figures"><b>{gib(figures.needed_bytes)}</b> of {gib(figures.capacity_bytes)} GiB
              {figures.gpus > 1 ? ` on each of ${figures.gpus.toLocaleString("en")} GPUs` : ""}, <b>{now.used}</b></span>
            <span class="interval">95% interval {gib(figures.needed_low_bytes)}–{gib(figures.needed_high_bytes)}</span>
          </>
        )}
        {!figures && <span class="why">{now.lead}</span>}
      </div>
      <Bar />
      <Spoken />
      <span class="thinking" />
    </section>
  );
}

/** The bar of the newest answer that has one. */
function Bar() {
  const place = useRef<HTMLDivElement>(null);
  const html = good.value?.html["bar"] ?? "";
  useEffect(() => {
    if (place.current) morph(place.current, html);
  }, [html]);
  return <div ref={place} class="crown-bar" data-old={stale.value || undefined} />;
}

/** What a screen reader says once figures have come to rest. */
function Spoken() {
  const said = useSignal("");
  const now = useComputed(() => {
    const first = latest.value?.first;
    return first ? `${first.verdict.word}. ${first.lead}` : "";
  });
  useEffect(() => {
    const timer = setTimeout(() => (said.value = now.value), QUIET_MS);
    return () => clearTimeout(timer);
  }, [now.value]);
  return <p class="unseen" role="status" aria-live="polite">{said}</p>;
}
