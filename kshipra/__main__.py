"""The shell: python -m kshipra generate | bench | experiments | models. Results go to stdout, the rest to
stderr."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich.console import Console

from kshipra import bench_verb, limits, metrics
from kshipra.bars import ERRORS, counting_bar, load_engine
from kshipra.cases import COMBINED, MODE_NAMES, check_draft
from kshipra.errors import KshipraError
from kshipra.experiments import command
from kshipra.memory import work_of_texts
from kshipra.models import catalogue
from kshipra.modes import mode_named
from kshipra.types import ModelChoice, RunResult, SamplingParams


class Parser(argparse.ArgumentParser):
    """Bad arguments end with status 2 and one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def engine_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """What to load; with `several`, dtype, weights and execution are lists: every combination is meant."""

    def option(name: str, default: str, help: str) -> None:
        many = dict(nargs="+", default=[default]) if several else dict(default=default)
        parser.add_argument(name, help=help, **many)

    parser.add_argument(
        "--model", default=catalogue.DEFAULT, help="catalogue name, Hub id, folder or .gguf file"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    option("--dtype", "auto", "what is computed in: auto, float32, bfloat16, float16")
    option("--weights", "native", "what is stored: native, bfloat16 or int8")
    option("--execution", "eager", "eager or compiled")
    parser.add_argument("--implementation", default="auto", help="auto, native or transformers")
    parser.add_argument(
        "--draft", metavar="NAME", help="smaller model, same tokenizer, that guesses in --mode draft_model"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="kshipra", description="A laboratory bench for LLM inference.")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)

    generate = verbs.add_parser("generate", help="complete prompts")
    generate.add_argument("prompts", nargs="+", metavar="PROMPT")
    generate.add_argument("--mode", default="kv_cache", help=", ".join(MODE_NAMES))
    generate.add_argument("--max-new-tokens", type=int, default=32)
    generate.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    generate.add_argument("--top-k", type=int, default=0, help="0 is off")
    generate.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    generate.add_argument("--repetition-penalty", type=float, default=1.0, help="1 is off")
    generate.add_argument("--seed", type=int, help="fresh if not given; the result shows it")
    generate.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="may be given several times"
    )
    generate.add_argument(
        "--chat", action="store_true", help="put each prompt into the model's chat template"
    )
    generate.add_argument("--json", action="store_true", help="the whole result as one JSON object")
    engine_arguments(generate)

    bench = verbs.add_parser("bench", help="measure modes or recipes against each other")
    bench_verb.add_arguments(bench)
    engine_arguments(bench, several=True)
    bench.set_defaults(**dict.fromkeys(COMBINED))  # not given: `cases_of` knows what is meant then

    command.add_arguments(verbs.add_parser("experiments", help="reproduce a finding of the two studies"))

    verbs.add_parser("models", help="list the catalogue")
    return parser.parse_args(arguments)


def generate(arguments: argparse.Namespace) -> None:
    prompts = tuple(arguments.prompts)
    limits.check_prompts(prompts)
    mode = mode_named(arguments.mode)
    check_draft(arguments.draft, [mode])
    params = SamplingParams(
        arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
        stop=tuple(arguments.stop),
    )
    options = ("model", "device", "dtype", "weights", "execution", "implementation", "draft")
    choice = ModelChoice(*(getattr(arguments, option) for option in options))
    work = work_of_texts(prompts, [params] * len(prompts), mode.together(len(prompts)))
    engine = load_engine(choice, work)
    requests = engine.requests(prompts, params, chat=arguments.chat)
    events = []
    bar, task = counting_bar("Generating", len(prompts) * params.max_new_tokens)
    with bar:
        for event in engine.run(requests, mode=arguments.mode):
            events.append(event)
            bar.advance(task, len(event.new_tokens))
    result = metrics.fold(arguments.mode, requests, events)
    if arguments.json:
        print(json.dumps(result.to_dict(), allow_nan=False))
    else:
        print_texts(prompts, result)


def print_texts(prompts: Sequence[str], result: RunResult) -> None:
    for number, (prompt, row) in enumerate(zip(prompts, result.rows, strict=True), start=1):
        seed = f", seed {row.seed}" if row.seed is not None else ""
        print(f"[{number}] {prompt}{row.text}\n    ({row.new_tokens} tokens, {row.finish_reason}{seed})")
    rate = result.end_to_end_tok_per_s
    figures = f"{rate:.1f} tok/s end to end" if rate else "nothing generated"
    accepted = metrics.acceptance(result)
    guesses = f", {accepted:.0%} of {result.drafted_tokens} guesses came true" if accepted is not None else ""
    ERRORS.print(f"{result.mode}: {figures}, {result.forward_passes} passes{guesses}", style="dim")


def models(_: argparse.Namespace) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "size", "licence", "what it is"):
        table.add_column(heading)
    for entry in catalogue.ENTRIES:
        table.add_row(entry.name, f"{entry.download_bytes / 1e6:.0f} MB", entry.licence, entry.sentence)
    Console().print(table)


VERBS = {
    "generate": generate,
    "bench": bench_verb.bench,
    "experiments": command.experiments,
    "models": models,
}


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a text may have characters that a console's code lacks
            stream.reconfigure(errors="replace")
    parsed = parse(arguments)
    try:
        return VERBS[parsed.verb](parsed) or 0
    except KshipraError as error:
        print(f"kshipra: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"kshipra: {error.filename or 'a file'} cannot be used: {error.strerror or error}.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
