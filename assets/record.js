// What every view of the study reads out of a run's document (kshipra/ui/record.py says what is in it).

// A way as hue() and mark() want it.
const wayOf = (record, key) => record.ways.find((way) => way.key === key);

// At most three significant digits, as kshipra/ui/show.py writes them; a dash for unknown.
const digits = (value) => value === null || value === undefined ? "–"
  : Number(Number(value).toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });
const seconds = (value) => value === null || value === undefined ? "–"
  : value >= 1 ? `${digits(value)} s` : `${digits(value * 1000)} ms`;
const bytes = (value) => {
  if (value === null || value === undefined) return "–";
  let [amount, unit] = [value, "B"];
  for (const larger of ["KiB", "MiB", "GiB"]) {
    if (Math.abs(amount) < 1000) break;
    [amount, unit] = [amount / 1024, larger];
  }
  return value ? `${digits(amount)} ${unit}` : "0";
};
// Whether a way's tokens are known one by one: a server tells text, and at most how many tokens it was.
const tellsIds = ({ result }) => result.forward_passes !== null;
// The sum of what `of` gives, null where one of them is not known.
const sumOf = (list, of) => list.reduce((total, each) => total === null || of(each) === null ? null : total + of(each), 0);
// New tokens of a step; older documents do not say how many a token is.
const freshOf = (step) => sumOf(step.new_tokens, ({ count }) => count === undefined ? 1 : count);
const filled = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "–");
