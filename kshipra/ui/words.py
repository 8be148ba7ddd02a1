"""Every word that the page says of its own accord: labels, definitions, sentences. No gradio, no torch."""

from __future__ import annotations

from typing import Any

NAME = "Kshipra"
SENTENCE = "One model, the same prompts, several ways of generating: watch what each one buys."
BUG = "Something went wrong in Kshipra itself; see the log."

# key, label, definition
FIGURES: tuple[tuple[str, str, str], ...] = (
    (
        "decode_rate",
        "tok/s",
        "Decode rate: new tokens after each prompt's first, divided by the time of the decode passes.",
    ),
    ("ttft", "TTFT", "Time to first token: from the start of this way's run to the first new token."),
    (
        "p50",
        "step p50",
        "Median time of a decode pass: one forward pass with sampling, ids back on the host.",
    ),
    ("passes", "passes", "Forward passes through the model so far, prefill and decode."),
    ("kv", "KV cache", "Bytes of the keys and values that are stored now; 0 without a cache."),
    (
        "peak",
        "peak extra",
        "Highest memory so far above the baseline, which is taken after one warm-up pass.",
    ),
    (
        "reused",
        "reused",
        "Prompt tokens whose keys and values were there from earlier prompts, and which were not read again.",
    ),
    (
        "accepted",
        "accepted",
        "Guessed tokens that are the model's own, of all that were guessed; they are underlined in the text.",
    ),
    ("acceptance", "acceptance", "The share of guesses that are the model's own tokens."),
    ("per_pass", "tokens/pass", "New tokens divided by forward passes: 1 for one prompt without guesses."),
)
REUSE_FIGURES, GUESS_FIGURES = ("reused",), ("accepted", "acceptance", "per_pass")
MORE_FIGURES = (*REUSE_FIGURES, *GUESS_FIGURES)  # those that not every way has

# in the order of the cells that a run's document holds, so what is new comes last
SUMMARY: tuple[tuple[str, str], ...] = (
    ("way", "A way of generating."),
    ("speed-up", "End-to-end rate divided by that of the first way that finished."),
    ("end to end", "All new tokens divided by the wall time of the run, in tokens a second."),
    (
        "decode",
        "New tokens after each prompt's first, divided by the time of the decode passes, in tokens a second.",
    ),
    ("TTFT", "Time to first token: from the start of this way's run to the first new token."),
    ("step p50", "Median time of a decode pass."),
    ("step p99", "99 of 100 decode passes took at most this long."),
    ("passes", "Forward passes through the model, prefill and decode."),
    ("new tokens", "Tokens that the model produced, end tokens included, padding never."),
    ("peak extra", "Highest memory of the run above the baseline, which is taken after one warm-up pass."),
    ("KV used", "Most bytes of keys and values that were stored at one time."),
    ("KV held", "Bytes of the tensors that were set aside for keys and values."),
    ("wall", "Time of the whole run of this way; its clock rests while a pass that is over is looked at."),
    ("largest gap", "The longest time that a prompt which had begun waited for its next token."),
    (
        "padding",
        "Positions computed for nothing, of all that were computed: in front of shorter prompts, and rows "
        "that had ended while others went on.",
    ),
    ("tokens/pass", "New tokens divided by forward passes."),
    ("accepted", "Guessed tokens that are the model's own, of all that were guessed."),
    (
        "reused",
        "Prompt tokens whose keys and values were there from earlier prompts, of all. TTFT is then not that "
        "of a cold run.",
    ),
)

SUMMARY_SHOWN = (  # the order of the columns
    "speed-up", "end to end", "decode", "wall", "TTFT", "step p50", "step p99", "largest gap", "passes",
    "tokens/pass", "accepted", "new tokens", "padding", "reused", "peak extra", "KV used", "KV held",
)  # fmt: skip

# key, title, note, definition
CHARTS: tuple[tuple[str, str, str, str], ...] = (
    (
        "latency",
        "Step latency",
        "ms by step; ○ is a prefill",
        "Time of one forward pass with sampling, until the new ids are on the host.",
    ),
    (
        "throughput",
        "Throughput",
        "tok/s over the last 8 steps",
        "New tokens of the last 8 passes divided by the time they took, prefill included.",
    ),
    (
        "memory",
        "Memory",
        "MiB over time",
        "Above: resident memory, less what it was at the way's first pass. Below: keys and values stored.",
    ),
    (
        "rows",
        "Rows",
        "in a decode pass; shaded: ended",
        "Rows that took part in a decode pass. Shaded: places that were computed for rows that had ended.",
    ),
)

FINISH = {
    "stop": "ended by itself",
    "length": "length reached",
    "context": "context is full",
    "cancelled": "stopped",
}

MODEL_INFO = {
    "own": "A name from the list, a Hub id, a folder or a .gguf file.",
    "public": "A public page offers these only; run Kshipra on your own machine for any other.",
}
# behind "why?" in a way's column, by its key
WHY = {
    "no_cache": "Attention looks at keys and values of the whole text. Without a cache they are computed "
    "again for every new token, so each step takes longer than the one before.",
    "kv_cache": "A token's keys and values do not depend on what comes after it, so once is enough. A step "
    "then reads all weights to compute one single token: memory sets the pace, not arithmetic.",
    "static_batch": "A step reads the weights once, for however many rows, so further rows cost little until "
    "arithmetic sets the pace. But a batch lasts as long as its longest row: places of rows that have ended "
    "are computed for nothing, and prompts beyond the rows at once wait for all of them.",
    "continuous": "When prompts or limits differ in length, a static batch empties little by little. Here "
    "the next prompt is read as soon as a place is free. A long one is read in pieces, with a step of all "
    "other rows after each, so that none of them waits long for its next token.",
    "speculative": "A step reads all weights, whether it computes one token or ten: so ten can be had for "
    "little more than one, if they are known. They are guessed, and one pass checks them all. What the model "
    "would not have chosen itself is dropped, so the text is the same. It pays where a text repeats its "
    "prompt or itself, and costs a little where it does not.",
    "draft_model": "The guesses are those of a smaller model, which costs a pass of its own for each of "
    "them. It pays where that one is several times faster and mostly agrees; what this model would not have "
    "chosen itself is dropped, so the text is the same.",
    "server": "A server decides itself how it generates: batches, kernels, its machine. Here it is seen from "
    "outside: when its text came in, and how many tokens it says there were. A piece of text may be several "
    "tokens, so pieces are never counted; its step time is the time between two pieces of a prompt's text.",
}

NOT_HERE = "Not on this machine: {ways}, because {why}."  # ways that can be picked all the same
COMPILED = "Compiled in {time}, which is in no figure here."
COMPILED_BEFORE = "It had been compiled before."
DID_NOT_RUN = "{letter} {label} did not run. {sentence}"
BROKE_OFF = "{letter} {label} broke off. {sentence}"

PAGE = {
    "idle": "Ready. Press Run.",
    "starting": "Starting …",
    "stopping": "Stopping after this step …",
    "lost": "The run broke off: the connection was lost or a value was refused. Run again.",
    "gone": "The connection to the server was lost: what had come stays here until you reload the page.",
    "brokenOff": "broken off",
    "summaryIdle": "After a run: speed-ups, figures, and whether all ways gave the same tokens.",
    "chartIdle": "draws while a run is going on",
    "data": "data",
    "dataLabel": "Show the numbers behind this chart",
    "copy": "copy",
    "copied": "copied",
    "copyLabel": "Copy prompt {n} with its new text",
    "textsLabel": "Texts of {way}",
    "why": "why?",
    "step": "step",
    "seconds": "seconds since the way started",
    "ms": "ms",
    "rate": "tok/s",
    "resident": "resident, +MiB",
    "kv": "KV, MiB",
    "residentColumn": "resident MiB",
    "kvColumn": "KV MiB",
    "secondsColumn": "s",
    "rows": "rows",
    "rowsColumn": "running",
    "placesColumn": "computed",
    "prefillColumn": "prefill",
    "noPlotly": "The charts could not be loaded; texts and figures go on without them.",
    "details": "All figures",
}

PROMPTS = {
    "title": "Prompts",
    "preset": "preset",
    "own": "your own",
    "add": "+ Add a prompt",
    "remove": "Remove prompt {n}",
    "label": "Prompt {n}",
    "placeholder": "Text that the model goes on from",
    "limits": "limits",
    "limitsLabel": "Give prompts their own limits of new tokens",
    "limit": "Limit of new tokens of prompt {n}",
    "most": "max",
}

NO_FILES = "Kshipra gives no files of its machine and takes none."

LINK = {
    "label": "Copy link",
    "copied": "Copied",
    "address": "Copy it from the address bar",
    "tooLong": "Too long for a link: export the run instead",
    "refused": "The link was not taken: {sentence}",
}

HEADER = {
    "model": "Model",
    "dark": "Dark",
    "light": "Light",
    "darkLabel": "Switch to the dark theme",
    "lightLabel": "Switch to the light theme",
    "none": "none loaded yet; Run loads it",
}

REUSE = {
    "title": "Cache reuse",
    "label": "Reuse the cache of earlier prompts",
    "info": "What earlier runs have read is not read again, so their times are not those of a cold start.",
    "kept": "Kept: {texts}, {used} of {budget}.",
    "text": "1 text",
    "texts": "{n} texts",
    "nothing": "Nothing is kept yet.",
    "clear": "Clear",
    "none": "It keeps no cache that could be reused.",
}

SERVER = {
    "title": "Server",
    "address": "Address",
    "addressInfo": "For way {letter}: a server with OpenAI's interface, as http://127.0.0.1:8000. Blank is "
    "this machine's own setting.",
    "addressInfoPublic": "For way {letter}. This page asks the servers on its own list only.",
    "model": "Model there",
    "key": "Key",
    "keyInfo": "Used for the run, kept nowhere.",
    "asked": "Asked for: {model}.",
    "noIds": "{letter}'s server tells text and no tokens, so it is not compared.",
    "texts": "{letter}'s server tells text and no tokens: its text is that of {first} in {same} of {all}.",
}

DRAFT = {
    "title": "Draft model",
    "info": "For way {letter}: a smaller model with the same tokenizer, as distilgpt2 is for gpt2.",
}

QUEUED = {
    "next": "Queued: next in line",
    "one": "Queued: 1 run goes first",
    "more": "Queued: {n} runs go first",
    "others": ", and another model is loaded on the way",
    "loads": "; then {model} is loaded",
    "instead": ", which takes the place of {before}",
    "it": "that one",
}

ESTIMATE = {
    "fits": "{model}: {parameters} weights in {dtype}. With these prompts it takes about {needed} of memory, "
    "and {free} are free. Run loads it once the runs before have ended.",
    "loaded": "{model} is loaded. These prompts take about {needed} of memory more, and {free} are free.",
}

MOST = {"info": "of each prompt"}
ROWS = {"label": "Rows at once", "info": "batched; more wait"}

RAIL = {"toggle": "Prompts and settings"}

# The study: what can be looked at once a run is over

RACE: dict[str, Any] = {
    "play": "Play",
    "pause": "Pause",
    "again": "Play again",
    "time": "Time in the race",
    "clock": "{now} of {end}",
    "speed": "Speed",
    "times": "{factor}×",
    "progress": "Tokens of {way}",
    "texts": "Texts of {way} in the race",
    "tokens": "tokens",
    "tokensMeaning": "New tokens of all prompts so far, of all that this way produced.",
    "of": "{done} of {all}",
    "rate": "tok/s",
    "rateMeaning": "So far: new tokens divided by the time since this way's own start.",
    "finished": "finished",
    "finishedMeaning": "Time of this way's whole run, from its own start.",
    "stopped": "stopped",
    "failed": "failed",
    "places": ["1st", "2nd", "3rd"],
    "place": "{place}th",
    "finisher": "{place}: {letter} {way}, {time}",
    "none": "Measured one after another, replayed side by side. None has finished yet.",
    "recorded": "Recorded on {processor}, {date}: not measured here.",
    "watch": "Watch a recorded race",
    "recordedLabel": "Recorded race",
    "recordedLost": "The recorded run could not be loaded; reload the page and try again.",
    "recordedName": "{model}, {device}: {ways}, {prompts}, up to {tokens} new tokens",
}

TIMELINE: dict[str, Any] = {
    "legend": "What the bars show",
    "waiting": "waiting",
    "waitingMeaning": "Ways are measured one after another: the time that the ways before this one took.",
    "prefill": "prefill",
    "prefillMeaning": "Forward passes that take prompt tokens for the first time; drawn taller.",
    "decode": "decode",
    "decodeMeaning": "Forward passes that each add one new token to every prompt that takes part, and more "
    "where guesses come true.",
    "pads": "padding",
    "padsMeaning": "Positions computed for nothing: in each pass their share of what it computed, as a share "
    "of its height.",
    "and": " and ",
    "bar": "Passes of {way}",
    "pass": "Pass {first} of {count}: {phase}",
    "passes": "Passes {first} to {last} of {count}: {phase}",
    "details": "rows {rows} · tokens in {tokens} · new tokens {fresh} · pads {pads} · {time}",
    "reused": "reused {n}",
    "guessed": "guessed {n}",
    "waited": "Waiting {time} for {ways}",
    "times": "waiting {waiting} · prefill {prefill} · decode {decode}",
    "timesFirst": "prefill {prefill} · decode {decode}",
    "noPasses": "no forward pass",
    "padding": "{share} % of the computed positions were padding",
    "noPadding": "no padding",
    "stopped": "stopped",
    "failed": "failed",
    "axisSeconds": "seconds since the first way started",
    "axisMilliseconds": "milliseconds since the first way started",
    "data": "data",
    "dataLabel": "Show the passes as a table",
    "tableLabel": "Passes",
    "columns": ["way", "pass", "phase", "starts at", "time", "rows", "tokens in", "new tokens", "pads"],
    "cut": "The first {most} passes of each way; the exported document has them all.",
}

PROOF = {
    "first": "First way",
    "second": "Second way",
    "verdicts": {
        "identical": "identical",
        "near-tie": "rounding near-tie",
        "fault": "real fault",
        "ended": "ended earlier",
        "none": "not compared",
    },
    # where the two ways store their weights in different ways, which is no rounding of arithmetic
    "otherWeights": {"near-tie": "other weights", "fault": "beyond other weights"},
    "unfinished": "Two ways are compared when the whole run has gone to its end.",
    "alone": "There is one way in this run: pick two or more to compare them.",
    "place": "where they part",
    "placeText": "prompt {row}, new token {position}",
    "goTo": "go to it",
    "takes": "{letter} takes",
    "hadEnded": "had ended",
    "margin": "margin",
    "marginMeans": "Distance between the two best logits of {letter} at this place.",
    "largest": "largest logit difference",
    "largestMeans": "The most that any logit of the vocabulary differs between the two ways at this place.",
    "how": "Hover a token, or press Tab and then the arrow keys: its probability and the five likeliest, as "
    "the model itself gives them, before temperature and cut-offs. · is a space, ⏎ a new line.",
    "prompt": "Prompt {n}",
    "tokens": "New tokens of prompt {n}; arrow keys go from token to token",
    "count": "{n} new tokens",
    "same": "{n} new tokens, the same in both",
    "counts": "{first} new tokens against {second}",
    "noTokens": "no new tokens",
    "more": "Show the next {n} of {left} more tokens",
    "token": "{letter}, token {n}: {text}",
    "differs": "different",
    "firstDifference": "first difference",
    "id": "id {id}",
    "probability": "probability",
    "alternatives": "The five likeliest tokens",
    "text": "token",
    "number": "id",
    "logProbability": "log p",
    "chosen": "chosen",
    "outside": "The chosen token is not among the five likeliest.",
    "noAlternatives": "This run holds no probabilities.",
}

LAB = {
    "title": "Bug lab",
    "bug": "Plant a classic fault",
    "info": "It runs beside the healthy way, with the prompts and settings from above.",
    "plant": "Plant it for one run",
    "heading": "Planted: {label}",
    "checks": "The engine's checks on both",
    "check": "check",
    "healthy": "Healthy",
    "broken": "Broken",
    "passed": "passed",
    "caught": "caught",
    "figures": "off by {difference}, {tolerance} allowed",
    "caughtBy": "What catches it here: {checks}.",
    "names": {
        "padding": "the padding check",
        "one-token": "the check with one-token steps",
        "two-token": "the check with two-token steps",
    },
    "caughtByNone": "No check catches it on this model.",
    "noChecks": "The run ended before its checks were taken.",
    "why": "Why: {why}",
    "noPads": "All prompts of this run have the same number of tokens, so no row was padded and the fault "
    "had nothing to spoil in the texts: take prompts of unequal length.",
    "positions": {
        "learned": "{model} is of the family {family}, which learned a vector for every position: a token at "
        "a wrong position gets another vector, and the whole text can change.",
        "rotary": "{model} is of the family {family}, which turns queries and keys by their position "
        "(rotary): only the distance between two tokens counts, so a shift of a whole row changes nothing, "
        "and wrong distances do.",
    },
}

PREDICTION = {
    "guessed": "Guesses that came true made it {tokens} new tokens a pass, so a token may take less than "
    "reading the weights once.",
    "none": "No prediction: the run was stopped before this machine's roofline was known.",
    "table": "Prediction and measurement",
    "weights": "weights read",
    "arithmetic": "arithmetic",
    "overhead": "overhead",
    "roofline": "This machine's roofline: {bandwidth} of memory read, {arithmetic} in {dtype} on {device}, "
    "{threads} threads, the best seen on {when}.",
    "how": "Predicted: the longer of bytes to read over the memory's rate and operations over the "
    "processor's, from the model's shape. Bar: the measured step; filled: what the prediction explains.",
    "heads": (
        ("way", "A way of generating."),
        ("step", "The measured decode step as a bar, filled as far as the prediction explains it."),
        ("predicted", "Median over the decode passes of what reading and arithmetic must take at least."),
        ("measured", "Median time of a decode pass."),
        ("bandwidth", "Bytes that a step must read over its time, as a share of what this memory can do."),
        (
            "arithmetic",
            "Operations that a step must do over its time, as a share of what this processor can do.",
        ),
        (
            "bound by",
            "What sets the pace: reading weights, arithmetic, or, where a step takes over twice the "
            "prediction, overhead of each step.",
        ),
        (
            "KV formula",
            "Keys and values by the model's shape: 2 × layers × KV heads × head size × bytes a "
            "number, for every stored column of every row.",
        ),
        ("KV real", "Bytes of the real tensors' stored columns."),
    ),
}

SETTINGS_LINE = {
    "prompt": "{n} prompt",
    "prompts": "{n} prompts",
    "most": "up to {n} new tokens",
    "limits": "{least} to {most} new tokens at most",
    "rows": "{n} rows at once",
    "reuse": "earlier prompts' cache reused",
    "greedy": "greedy",
    "drawn": "temperature {temperature}",
    "chat": "chat template",
    "raw": "raw text",
}

EXPORT: dict[str, Any] = {
    "takeHead": "Take this run with you",
    "reportHead": "Report",
    "reportSentence": "One HTML file with figures, charts and texts. It opens offline, it prints, and opens "
    "here again.",
    "reportButton": "HTML",
    "jsonHead": "The whole run",
    "jsonSentence": "Settings, machine, versions and every step as one JSON document. It opens here again.",
    "csvHead": "Steps",
    "csvSentence": "A line for each forward pass of each way, for a spreadsheet.",
    "chartLabel": "{chart} as {format}",
    "saved": "Saved as {file}.",
    "notDrawn": "The charts could not be drawn: reload the page and open the run again.",
    "openHead": "Open a run",
    "choose": "Choose a file",
    "orDrop": "or drop it here: a JSON or a report that was saved above",
    "local": "Files are read in this browser and sent nowhere.",
    "opened": "{file} is open.",
    "tooLarge": "{file} is larger than 64 MB, which no run of Kshipra is.",
    "notRead": "the file could not be read.",
    "notJson": "this is not JSON, or it is cut off.",
    "noData": "this page holds no run: open a report that was saved by Kshipra.",
    "notARun": "this is JSON, but not a run of Kshipra.",
    "newer": "a newer Kshipra wrote it (format {version}, and this one reads {newest}): update Kshipra.",
    "wrong": "the run is damaged: {where} must be {what}.",
    "root": "the document",
    "kinds": {
        "text": "a text of a sensible length",
        "number": "a number in its range",
        "whole": "a whole number in its range",
        "flag": "true or false",
        "word": "one of the words that are known here",
        "list": "a list of a sensible length",
        "parts": "an object with named parts",
        "date": "a date",
        "letter": "a capital letter",
        "key": "a short name in small letters",
        "flat": "less deeply nested",
        "prompts": "about the prompts of this run, each once",
        "order": "in the order of time",
        "tokens": "about the tokens that the steps tell of",
        "ways": "about ways of this run, each with its own name and letter",
    },
    # charts
    **{name: PAGE[name] for name in ("step", "ms", "seconds", "rate", "resident", "kv", "rows")},
    # report
    "reportTitle": "{model}: a run of Kshipra",
    "reportLine": "{machine}, {when}",
    "figures": "Figures",
    "charts": "Charts",
    "texts": "Texts",
    "promptHead": "Prompt {n}",
    "noText": "(no text)",
    "finish": FINISH,
    "comparisons": "Are the tokens the same?",
    "predictions": "What should it have taken?",
    "bug": "Bug lab",
    "passed": "Passed.",
    "failed": "Failed.",
    "settingsHead": "Settings",
    "modelHead": "Model",
    "machineHead": "Machine",
    "processor": "processor",
    "system": "system",
    "memory": "memory",
    "device": "device",
    "cpu": "cpu, {n} threads",
    "versions": "versions",
    "model": "model",
    "asked": "asked for as",
    "shape": "shape",
    "shapeText": "{layers} layers, width {width}, {heads} heads, {kv_heads} key/value heads of {head_size}, "
    "{parameters} parameters",
    "precision": "precision",
    "precisionText": "computed in {dtype}, weights {weights}, {execution}",
    "weights": "weights",
    "kvPerToken": "keys and values a token",
    "settingsLine": "run",
    "settings": SETTINGS_LINE,
    "topK": "top-k",
    "topP": "top-p",
    "penalty": "repetition penalty",
    "seeds": "seeds",
    "stops": "stop texts",
    "off": "off",
    "reopen": "The whole run, every step of it, lies inside this file: open it in Kshipra under “Export and "
    "open” to replay it.",
}

HISTORY: dict[str, Any] = {
    "sentence": "The last {most} runs that ended in this browser. They are kept in it and nowhere else.",
    "none": "No earlier run yet: change a setting or the model, press Run, and compare the two here.",
    "notKept": "This browser keeps no data for this page, so earlier runs are forgotten when it is closed.",
    "choose": "Compare with",
    "this": "shown now",
    "notShown": "Open or make a run to compare it with one of these.",
    "remove": "Forget",
    "removeLabel": "Forget the run of {when}",
    "clear": "Forget all",
    "confirm": "Press again to forget {n} runs",
    "settings": SETTINGS_LINE,
    "where": "{device}, {dtype}",
    "cpu": "{device}, {threads} threads, {dtype}",
    "against": "The run shown, against that of {when}",
    "same": "Same model, machine, settings and versions.",
    "differs": "What differs",
    "now": "now",
    "before": "before",
    "facts": {
        "model": "model",
        "device": "device",
        "dtype": "precision",
        "threads": "threads",
        "processor": "processor",
        "settings": "settings",
        "prompts": "prompts",
        "versions": "versions",
    },
    "otherPrompts": "others",
    "figure": "figure",
    "ratio": "now / before",
    "better": "better",
    "worse": "worse",
    "figures": {
        "end_to_end_tok_per_s": "end to end, tok/s",
        "decode_tok_per_s": "decode, tok/s",
        "ttft_s": "TTFT",
        "p50": "step p50",
        "peak_extra_bytes": "peak extra",
        "kv_bytes": "KV used",
        "new_tokens": "new tokens",
    },
    "sameTokens": "The same tokens as before.",
    "otherTokens": "Other tokens than before.",
    "otherModel": "Another model: tokens are not compared.",
    "otherSettings": "Other prompts or settings: tokens are not compared.",
    "notWhole": "Did not run to its end: tokens are not compared.",
    "onlyNow": "Only in the run shown: {ways}.",
    "onlyBefore": "Only in the earlier run: {ways}.",
}

STUDY_TOO_LONG = (
    "This run has {steps:,} passes and tokens, more than the {most:,} that can be studied on the page: take "
    "fewer new tokens, fewer prompts or fewer ways."
)

STUDY = {
    "label": "Study of the run",
    "idle": "After a run: replay it as a race, see where its time went, prove its tokens, take it with you.",
    "tabs": {
        "race": "Race",
        "timeline": "Timeline",
        "proof": "Proof",
        "prediction": "Prediction",
        "export": "Export and open",
        "history": "Earlier runs",
    },
    "shown": "{model} on {machine}, {when}",
    "race": RACE,
    "timeline": TIMELINE,
    "proof": PROOF,
    "lab": LAB,
    "prediction": PREDICTION,
    "export": EXPORT,
    "history": HISTORY,
}

# The experiments

PLACES = {"label": "Parts of the page", "bench": "Bench", "experiments": "Experiments", "live": "Live"}

EXPERIMENTS: dict[str, Any] = {
    "label": "Experiments",
    "heading": "Experiments",
    "sentence": "Two published studies measured again, raw samples kept: what their authors found, what "
    "other machines say, and what settles the open questions.",
    "results": "Results of {title}",
    "command": "Not measured yet. Run",
    "openHead": "Open a results file",
    "choose": "Choose a results.json",
    "orDrop": "or drop it here: python -m kshipra experiments NAME writes one",
    "private": "It is read by this page's server for you alone, and not kept.",
    "reading": "Drawing {file} …",
    "shown": "{file} is open.",
    "lost": "The report did not arrive: the connection was lost or the server is busy. Try again.",
    "failed": "The report of this file could not be made: measure it again, or open another.",
    "damaged": "{file} is damaged: run the experiment again.",
    "gone": "These results do not come with this Kshipra: reload the page.",
    "nothing": "No file came: choose a results.json of an experiment.",
    "notRead": "{file} could not be read: choose it again.",
    "tooLarge": "{file} is larger than {most} MiB: draw it with python -m kshipra experiments NAME "
    "--plots-only.",
    "tooLong": "The report of {file} took more than {most} seconds: draw it with python -m kshipra "
    "experiments NAME --plots-only.",
    "note": "Recorded: measured on {machine}, {days}, not here.",
    "answers": "What it shows",
    "factsHead": "Where this was measured",
    "facts": {
        "where": "measured on",
        "days": "day",
        "grid": "grid",
        "quick": "quick: a smaller grid",
        "full": "full",
        "state": "state",
        "finished": "finished, {n} cases",
        "unfinished": "unfinished: the run was stopped after {n} cases",
        "versions": "versions",
        "commit": "commit",
        "noCommit": "unknown",
    },
    "logX": "log x",
    "logY": "log y",
    "logMeans": "Logarithmic axis",
    "published": "published",
    "publishedMeans": "Show the published points of the study",
    "data": PAGE["data"],
    "dataLabel": PAGE["dataLabel"],
    "series": "series",
    "least": "least",
    "most": "most",
    "cut": "The first {most} points; the results file has them all.",
    "noPlotly": "The figures could not be loaded: reload the page. Answers and tables are here all the same.",
}

# The live batch

LIVE_STATES = {
    "behind": "waits for your answer above",
    "held up": "a measured run goes first, place {place}",
    "place": "waiting, place {place}",
    "reading": "reading",
    "answering": "answering",
    "failed": "not answered",
}

LIVE_TURN = (
    ("TTFT", "From the moment your message was sent to the first token of its answer, with all waiting."),
    ("tok/s", "New tokens after the first, by the time between the first and the newest."),
    (
        "reused",
        "Tokens of the conversation that nobody read again, because their keys and values were kept: of your "
        "earlier turns, or of another conversation that began alike, as with the template's own words.",
    ),
    ("new tokens", "Tokens that the model produced, its end token included."),
)

LIVE_BATCH = (
    ("rows running", "Answers that share every pass of the model now, of as many as there is room for."),
    ("waiting", "Messages that have no place in the batch yet."),
    ("passes/s", "Forward passes a second, over the last three seconds."),
    ("tok/s, all rows", "New tokens of all visitors together a second, over the last three seconds."),
    (
        "largest gap",
        "The longest wait between two tokens of one answer within the last 30 s. Prompts are read 64 tokens "
        "at a time between the steps of others, so that it stays small.",
    ),
    (
        "cache columns",
        "Rows times the longest of them, of what the cache may hold. Who would go beyond it waits.",
    ),
    (
        "kept for reuse",
        "Keys and values of earlier texts, so that a conversation goes on without being read again. What was "
        "used least lately goes first.",
    ),
    ("visitors", "Browser tabs that have this part of the page open."),
)

LIVE: dict[str, Any] = {
    "label": "Live",
    "heading": "One batch for everybody",
    "sentence": "Every open tab is a visitor. What all of them send shares each pass of the model: a row "
    "joins when its prompt has been read, and leaves with its last token.",
    "talk": "Your conversation",
    "empty": "Nothing said yet. Open this page in a second tab and send from both: their rows run side by "
    "side.",
    "private": "Only you see your texts; others see that a place is taken. A reload starts anew.",
    "sending": "sending",
    "say": "Your message",
    "sayHint": "Write a message",
    "send": "Send",
    "stop": "Stop",
    "stopLabel": "Stop the answer to message {n}",
    "fresh": "New conversation",
    "tokens": "Max new tokens",
    "temperature": "Temperature",
    "you": "You",
    "model": "Model",
    "batch": "The batch",
    "chart": "Places of the batch over the last 30 s. Running now: {running}, yours: {own}.",
    "caption": "A pass reads the model's weights once, however many rows share it: that is why together they "
    "get more tokens a second than one alone.",
    "yours": "your rows",
    "others": "others",
    "reading": "reading the prompt",
    "ago": "{s} s ago",
    "now": "now",
    "resting": "Nobody is being answered.",
    "lost": "The connection was lost: reload the page.",
    "brokenOff": PAGE["brokenOff"],
    "nothing": "This server lends its device to one run at a time, so requests cannot share a batch: use the "
    "bench.",
}
