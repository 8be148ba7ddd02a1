// "Copy link": the form's values as a query string. The address bar shows it too, for where there is no clipboard.

const query = new URLSearchParams();
settings.names.forEach((name, at) => {
  const value = values[at];
  if (settings.several.includes(name)) for (const item of value) query.append(name, [item].flat()[0]);
  else if (value !== "" && value !== null) query.set(name, value);
});
const limits = values[settings.names.indexOf("prompts")].map((item) => [item].flat()[1] ?? "");
if (limits.some((limit) => limit !== "")) for (const limit of limits) query.append(settings.limits, limit);
const address = `${location.origin}${location.pathname}?${query}`;
const button = document.querySelector("button#copy-link, #copy-link button");
const say = (text) => {
  button.textContent = text;
  setTimeout(() => (button.textContent = settings.words.label), 2500);
};
if (address.length > settings.most) {
  say(settings.words.tooLong);
} else {
  history.replaceState(null, "", address);
  copyText(address).then((isCopied) => say(isCopied ? settings.words.copied : settings.words.address));
}
return [];
