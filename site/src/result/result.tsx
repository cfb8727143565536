/** The engine's sections in their order, each in an element of its own that is changed only when its HTML changes. */
import { useEffect, useRef } from "preact/hooks";
import { morph } from "./morph.ts";

export interface SectionProps {
  id: string;
  html: string;
  half?: boolean;
  /** Whether the section is of an earlier answer, and nothing in it can be pressed. */
  old?: boolean;
  adorn?: (body: HTMLElement) => void;
}

/** One section. Nothing of Preact is inside. */
export function Section({ id, html, half = false, old = false, adorn }: SectionProps) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (place.current) morph(place.current, html, adorn);
  }, [html, adorn]);
  return <div ref={place} id={`section-${id}`} class={half ? "half" : ""} data-section={id} data-old={old || undefined} inert={old} />;
}
