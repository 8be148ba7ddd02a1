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
const filled = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "–");
