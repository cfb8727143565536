/** A menu in a popover: opened by its button, closed by Escape, by a click elsewhere, or by a choice. */
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Icon } from "./icons.tsx";
import { placeBelow } from "./place.ts";

export interface Entry {
  label: string;
  /** What the entry does, in a line. */
  hint?: string;
  run: () => void;
}

/** Entries under a heading. */
export interface Group {
  title: string;
  entries: readonly Entry[];
}

interface Props {
  id: string;
  label: string;
  /** Shown instead of the label's words, which then only name the button. */
  icon?: Parameters<typeof Icon>[0]["name"];
  groups: readonly Group[];
  class?: string;
  children?: ComponentChildren;
}

export function Menu({ id, label, icon, groups, class: kind = "", children }: Props) {
  const menu = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);

  const place = (event: { newState: string }): void => {
    const [list, opener] = [menu.current, button.current];
    if (!list || !opener) return;
    opener.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState !== "open") return;
    placeBelow(list, opener);
    items()[0]?.focus();
  };
  const items = (): HTMLButtonElement[] => [...(menu.current?.querySelectorAll("button") ?? [])];
  const walk = (event: KeyboardEvent): void => {
    const all = items();
    const at = all.indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Tab") menu.current?.hidePopover();
    if (to === undefined) return;
    event.preventDefault();
    all[(to + all.length) % all.length]?.focus();
  };
  const choose = (entry: Entry): void => {
    menu.current?.hidePopover();
    entry.run();
  };

  return (
    <>
      <button ref={button} type="button" class={`button plain ${icon && !children ? "square" : ""} ${kind}`}
        popovertarget={id} aria-haspopup="menu" aria-expanded="false" aria-label={icon && !children ? label : undefined}>
        {icon && <Icon name={icon} />}
        {children ?? (icon ? null : label)}
        {children && <Icon name="down" />}
      </button>
      <div ref={menu} id={id} class="menu" popover="auto" role="menu" aria-label={label} onToggle={place} onKeyDown={walk}>
        {groups.filter((group) => group.entries.length).map((group) => (
          <div role="group" aria-label={group.title} key={group.title}>
            <div class="heading" aria-hidden="true">{group.title}</div>
            {group.entries.map((entry) => (
              <button type="button" role="menuitem" tabIndex={-1} key={entry.label} onClick={() => choose(entry)}>
                <span>{entry.label}</span>
                {entry.hint && <small>{entry.hint}</small>}
              </button>
            ))}
          </div>
        ))}
      </div>
    </>
  );
}
