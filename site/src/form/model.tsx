/** The model: a search in the catalog by name, family and size. The list comes when the field is first used. */
import { useCombobox } from "downshift";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Icon } from "../frame/icons.tsx";
import { type CatalogModel, counted } from "../share/catalog.ts";

const SHOWN = 60;

/** Models whose name, family and size hold every word of the query; those that begin with it first. */
export function found(models: readonly CatalogModel[], query: string): CatalogModel[] {
  const wanted = query.toLowerCase().split(/[\s/]+/).filter(Boolean);
  const text = (model: CatalogModel): string => `${model.name} ${model.id} ${model.model_type} ${counted(model.parameters)}`.toLowerCase();
  const hits = models.filter((model) => wanted.every((word) => text(model).includes(word)));
  const rank = (model: CatalogModel): number => (wanted[0] && model.name.startsWith(wanted[0]) ? 0 : 1);
  return hits.sort((one, other) => rank(one) - rank(other));
}

interface Props {
  models: readonly CatalogModel[];
  value: string;
  set: (name: string) => void;
  describedBy: string;
}

export default function ModelBox({ models, value, set, describedBy }: Props) {
  const [query, setQuery] = useState<string | null>(null);
  const hits = useMemo(() => found(models, query ?? ""), [models, query]);
  const items = hits.slice(0, SHOWN);
  const box = useCombobox<CatalogModel>({
    items,
    itemToString: (item) => item?.name ?? "",
    inputValue: query ?? value,
    selectedItem: models.find((model) => model.name === value) ?? null,
    onInputValueChange: ({ inputValue, type }) => {
      if (type === useCombobox.stateChangeTypes.InputChange) setQuery(inputValue);
    },
    onSelectedItemChange: ({ selectedItem }) => {
      if (selectedItem) set(selectedItem.name);
    },
    onIsOpenChange: ({ isOpen }) => {
      if (!isOpen) setQuery(null);
    },
  });
  const input = useRef<HTMLInputElement>(null);
  // It takes the place of the field that was used, and of what was typed there.
  useEffect(() => input.current?.focus(), []);
  const typed = (query ?? "").trim();
  return (
    <div class="combo">
      <label class="unseen" {...box.getLabelProps()}>Model</label>
      <input {...box.getInputProps({
        ref: input,
        "aria-describedby": describedBy,
        onKeyDown: (event: KeyboardEvent) => {
          if (event.key === "Enter" && box.highlightedIndex < 0 && typed) set(typed);
        },
        onFocus: (event: FocusEvent) => (event.currentTarget as HTMLInputElement).select(),
      })} spellcheck={false} />
      <button type="button" class="open" {...box.getToggleButtonProps({ "aria-label": "All models" })}>
        <Icon name="down" />
      </button>
      <ul {...box.getMenuProps()}>
        {box.isOpen && items.map((item, index) => (
          <li key={item.name} data-chosen={item.name === value || undefined} {...box.getItemProps({ item, index })}>
            <span>{item.name}</span>
            <small>{counted(item.parameters)}</small>
          </li>
        ))}
        {box.isOpen && hits.length > SHOWN && <li class="told" role="presentation">{hits.length - SHOWN} more: type to narrow</li>}
        {box.isOpen && !hits.length && <li class="told" role="presentation">memcheck has no model of this name. Enter takes it as it is; a config.json can be pasted.</li>}
      </ul>
    </div>
  );
}
