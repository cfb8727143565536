/** The form: groups of fields as the engine sends them. */
export function FormPane() {
  return <section class="pane-form" id="pane-form" aria-label="Plan" />;
}
