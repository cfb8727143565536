/** What to do when the engine fails: the plan is kept, the report can be copied, and the command line has the same answer. */
import { latest, lane, path, refusal } from "../session.ts";
import { linkFault } from "../share/arrive.ts";
import { tell } from "../frame/toast.tsx";

/** Whether this browser can run the engine at all. */
export const able = typeof WebAssembly === "object" && typeof Worker === "function";

export function EngineNotice() {
  const now = lane.value;
  if (!able) {
    return (
      <div class="notice tone-warn" role="alert">
        <p><b>This browser cannot run the engine: it has no WebAssembly.</b> The example below can be read. The same answer at a command line:</p>
        <Command />
      </div>
    );
  }
  if (now.phase === "failed") {
    return (
      <div class="notice tone-bad" role="alert">
        <p><b>The engine failed twice and does not run.</b> The plan is kept. The same answer at a command line:</p>
        <Command />
        <Report text={now.message} />
        <button type="button" class="button" onClick={() => location.reload()}>Load the page again</button>
      </div>
    );
  }
  if (now.phase === "restarting") {
    return (
      <div class="notice tone-warn" role="alert">
        <p><b>The engine failed and starts again.</b> The plan is kept.</p>
        <Report text={now.message} />
      </div>
    );
  }
  return (
    <>
      {linkFault.value && (
        <div class="notice tone-warn" role="alert">
          <p><b>The link cannot be read: {linkFault.value}.</b> An example is shown instead.</p>
          <button type="button" class="button" onClick={() => (linkFault.value = "")}>Close</button>
        </div>
      )}
      <Defects />
    </>
  );
}

/** Failures of memcheck itself, and requests that it refuses. */
function Defects() {
  const refused = refusal.value;
  const defects = latest.value?.first.defects ?? [];
  return (
    <>
      {refused && (
        <div class="notice tone-warn" role="alert">
          <p><b>{refused.message}.</b> {refused.help}</p>
          {refused.report && <Report text={refused.report} />}
        </div>
      )}
      {defects.length > 0 && (
        <div class="notice tone-bad" role="alert">
          <p><b>memcheck itself failed on this plan.</b> The plan is kept. Please open an issue with the report.</p>
          <Report text={defects.join("\n\n")} />
        </div>
      )}
    </>
  );
}

function Command() {
  return <pre tabIndex={0} role="group" aria-label="Commands">pip install memcheck{"\n"}memcheck check {path.value}</pre>;
}

function Report({ text }: { text: string }) {
  return (
    <button type="button" class="button" onClick={() => void navigator.clipboard.writeText(text).then(() => tell("The report is in the clipboard."))}>
      Copy the report
    </button>
  );
}
