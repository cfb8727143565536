/**
 * Puts the answer to the first plan into `index.html`, so that a visit begins with a page that can be read: the report's
 * sections as HTML until the scripts draw the page, and the answer's steps as data, from which they draw it.
 */

/** The HTML of a page that waits for its scripts. `steps` are those of the answer, the first of which has the sections. */
export function drawn(steps) {
  const first = steps.find(({ step }) => step === "first");
  const parts = first.order.map(({ id, title }) => {
    if (!/^[\w-]+$/u.test(id)) throw new Error(`a section has the name ${id}`);
    const heading = title ? `<h2>${escaped(title)}</h2>` : "";
    return `<section>${heading}${first.sections[id] ?? ""}</section>`;
  });
  const { word, tone } = first.verdict;
  return `<main class="painted" inert><p class="tone-${escaped(tone)}"><strong>${escaped(word)}</strong></p>${parts.join("")}</main>`;
}

/** The answer as data in the page; the scripts look for `painted`. */
export function data(name, text, steps) {
  const written = JSON.stringify({ name, text, steps }).replaceAll("<", "\\u003c");
  return `<script type="application/json" id="painted">${written}</script>`;
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
