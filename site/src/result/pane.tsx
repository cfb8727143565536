/** The result: the engine's sections. Those of the answer itself share a card. */
import { good, latest, refusal, stale } from "../session.ts";
import { Section } from "./result.tsx";

/** Shown elsewhere: the bar above all, the plans of the file as tabs. */
const ELSEWHERE = new Set(["bar", "index"]);
const ANSWER = new Set(["lead", "advice", "facts"]);

export function ResultPane() {
  const answer = good.value;
  const now = latest.value;
  return (
    <section class="pane-result" id="pane-result" aria-label="Result" tabIndex={-1}>
      {refusal.value && (
        <div class="notice tone-warn" role="alert"><p><b>{refusal.value.message}</b> {refusal.value.help}</p></div>
      )}
      {stale.value && now && <div class="sections">{now.order.filter(({ id }) => id === "findings").map((head) => <Section key={head.id} id={`now-${head.id}`} html={now.html[head.id] ?? ""} />)}</div>}
      {answer && (
        <div class="sections">
          <div class="card answer">
            {answer.order.filter(({ id }) => ANSWER.has(id) && answer.html[id]).map((head) => <Section key={head.id} id={head.id} html={answer.html[head.id] ?? ""} />)}
          </div>
          {answer.order.filter(({ id }) => !ANSWER.has(id) && !ELSEWHERE.has(id)).map((head) => (
            <Section key={head.id} id={head.id} half={head.half} html={answer.html[head.id] ?? ""} />
          ))}
        </div>
      )}
    </section>
  );
}
