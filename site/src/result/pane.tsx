/** The result: the engine's sections. Those of the answer itself share a card. */
import { good, refusal, stale } from "../session.ts";
import { Trouble } from "./trouble.tsx";
import { Section } from "./result.tsx";

/** Shown elsewhere: the bar above all, the plans of the file as tabs. */
const ELSEWHERE = new Set(["bar", "index"]);
const ANSWER = new Set(["lead", "advice", "facts"]);

export function ResultPane() {
  const answer = good.value;
  return (
    <section class="pane-result" id="pane-result" aria-label="Result" tabIndex={-1}>
      {refusal.value && (
        <div class="notice tone-warn" role="alert"><p><b>{refusal.value.message}</b> {refusal.value.help}</p></div>
      )}
      <Trouble />
      {answer && (
        <div class="sections" data-old={stale.value || undefined}>
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
