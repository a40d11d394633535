/**
 * A row of tokens as buttons in a line, coloured by what is painted on them. One of them has the keyboard's place; the
 * arrows move it. Many tokens stay quick: only what changes is written.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 * @typedef {{colour: string, ink: string, number: string, says: string}} Dress
 * @typedef {{query: number | null, pin: boolean, key: number | null, deleted: Set<number>}} Marks
 */
import { h, say, set } from "./dom.js";
import { visible } from "./streams.js";

const NUMBERED = 128; // tokens, up to which each has its number below it
const TOGETHER = 128; // tokens that are laid out, or left out of sight, together

/** @param {string} label @param {Actions} actions @param {string | undefined} role */
export function makeTokens(label, actions, role) {
  const box = h("div", { class: "pl-chips", role: "group", "aria-label": label, keydown: arrows });
  /** @type {HTMLElement[]} */
  let chips = [];
  let [made, name] = ["", ""];
  /** @type {object | null} */
  let row = null;
  /** @type {number[]} */
  let tokens = [];
  /** @type {string[]} */
  let worn = [];

  function arrows(event) {
    const now = chips.indexOf(event.target);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: chips.length - 1 }[event.key];
    if (now < 0 || to === undefined || !chips[to]) return;
    event.preventDefault();
    chips[to].focus();
  }

  function fill(texts, special, dense) {
    chips = texts.map((text, i) =>
      h(
        "button",
        {
          type: "button",
          class: `pl-chip${special(tokens[i]) ? " pl-special" : ""}`,
          "data-token": tokens[i],
          "aria-label": text,
          tabindex: -1,
          pointerenter: () => actions.point(name, tokens[i], role),
          focus: () => actions.point(name, tokens[i], role),
          click: () => actions.choose(name, tokens[i], role),
        },
        h("span", {}, dense ? "" : visible(text)),
        h("small", {}),
      ),
    );
    const bunches = [];
    for (let i = 0; i < chips.length; i += TOGETHER) bunches.push(chips.slice(i, i + TOGETHER));
    const many = bunches.length > 1;
    box.replaceChildren(...(many ? bunches.map((each) => h("div", { class: "pl-bunch" }, ...each)) : chips));
    box.classList.toggle("pl-many", many);
    box.classList.toggle("pl-dense", dense);
    worn = chips.map(() => "");
  }

  /** New buttons, unless these say the same. */
  function prepare(stream, which) {
    [row, tokens, name] = [stream, which, stream.name];
    const texts = which.map((token) => stream.labels[token]);
    const wanted = JSON.stringify([name, texts]);
    if (made === wanted) return;
    made = wanted;
    fill(texts, (token) => stream.special.has(token), stream.kind === "frames" && which.length > NUMBERED);
  }

  /**
   * @param {{name: string, labels: string[], special: Set<number>, kind: string}} stream @param {number[]} which
   * @param {(token: number, numbered: boolean) => Dress | null} dressOf @param {Marks} marks
   */
  function update(stream, which, dressOf, marks) {
    box.hidden = !which.length;
    if (row !== stream) prepare(stream, which);
    const numbered = which.length <= NUMBERED;
    which.forEach((token, i) => {
      const dress = dressOf(token, numbered);
      const chosen = marks.query === token;
      const classes = [chosen && "query", chosen && marks.pin && "pin", marks.key === token && "key"];
      if (marks.deleted.has(token)) classes.push("deleted");
      const wear = `${dress?.colour} ${numbered ? dress?.says : ""} ${classes}`;
      if (worn[i] === wear) return;
      worn[i] = wear;
      const chip = chips[i];
      Object.assign(chip.style, { backgroundColor: dress?.colour ?? "", color: dress?.ink ?? "" });
      for (const each of ["query", "pin", "key", "deleted"]) chip.classList.toggle(`pl-${each}`, classes.includes(each));
      set(chip, "aria-pressed", String(chosen && marks.pin));
      if (!numbered) return;
      say(chip.lastChild, dress?.number ?? "");
      const states = [chosen && ", the query", chosen && marks.pin && ", pinned", marks.deleted.has(token) && ", deleted"];
      set(chip, "aria-label", `${stream.labels[token]}${dress?.says ?? ""}${states.filter(Boolean).join("")}`);
    });
    const place = Math.max(which.indexOf(marks.query ?? marks.key ?? -1), 0);
    if (!chips.includes(/** @type {any} */ (document.activeElement))) rove(chips[place]);
    else rove(/** @type {any} */ (document.activeElement));
  }

  /** The keyboard's place among the tokens. @type {HTMLElement | undefined} */
  let roved;
  function rove(chip) {
    if (roved === chip) return;
    if (roved) roved.tabIndex = -1;
    if (chip) chip.tabIndex = 0;
    roved = chip;
  }

  return { element: box, update };
}
