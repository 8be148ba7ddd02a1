"""Weights in int8 and bfloat16: which modules, how many bytes, how near to fp32, and that nothing else
changes. Tiny random models, whose sizes are also no multiples of what kernels like."""

from __future__ import annotations

import weakref
from collections import Counter

import pytest
import torch
from model_folders import is_one_sentence, write_gpt2
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM
from transformers.pytorch_utils import Conv1D

from checks import RAGGED
from conftest import NO_SPECIAL, VOCABULARY, Letters, loud, make_gpt2, make_llama, make_qwen2
from kshipra.costs import pass_bytes, weight_bytes
from kshipra.engine.check import CHECKS, run_checks, tolerance
from kshipra.engine.layout import HONEST
from kshipra.engine.review import compare
from kshipra.engine.runner import Engine, load
from kshipra.errors import InputError
from kshipra.metrics import fold
from kshipra.models import weights as storage
from kshipra.models.base import Linear
from kshipra.models.weights import (
    FEW_ROWS,
    Bfloat16Embedding,
    Bfloat16Linear,
    Int8Embedding,
    Int8Linear,
    PackedLinear,
    ends,
    inner,
    quantize,
    store,
    swap,
)
from kshipra.recipes import USUAL_KEYS, recipe_named
from kshipra.types import SamplingParams

STORED = ("bfloat16", "int8")
# Of the largest fp32 logit. These models are loud, layers of large random matrices, and rounding in bfloat16
# grows with them: int8 gave up to 0.09, bfloat16 0.04. Square matrices on their sides give 1.4 and more.
BOUND = {"int8": 0.12, "bfloat16": 0.06}
ODD = dict(vocab_size=131, n_embd=36, n_head=3)
packs = pytest.mark.skipif(not storage.multiplies_bfloat16(), reason="This CPU does not multiply bfloat16.")


def make_opt():
    """Layers of nn.Linear with biases, and a tied head, that only the adapter runs."""
    shape = dict(
        hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64
    )
    extra = dict(vocab_size=VOCABULARY, max_position_embeddings=256, pad_token_id=1, **NO_SPECIAL)
    return loud(OPTForCausalLM(OPTConfig(**shape, **extra)))


MODELS = {
    "gpt2": (make_gpt2, "native"),
    "gpt2, untied": (lambda: make_gpt2(tie_word_embeddings=False), "native"),
    "gpt2, odd": (lambda: make_gpt2(**ODD), "native"),
    "llama": (lambda: make_llama(tie_word_embeddings=True), "native"),
    "llama, untied": (make_llama, "native"),
    "llama, odd": (lambda: make_llama(vocab_size=131, intermediate_size=37), "native"),
    "qwen2": (make_qwen2, "native"),
    "gpt2, adapter": (make_gpt2, "transformers"),
    "llama, adapter": (make_llama, "transformers"),
    "opt, adapter": (make_opt, "transformers"),
}


def engine_of(name: str, weights: str = "native", dtype: torch.dtype = torch.float32) -> Engine:
    make, implementation = MODELS[name]
    return Engine(make().to(dtype), Letters(), implementation=implementation, weights=weights)


@torch.inference_mode()
def logits_of(engine: Engine, rows: int = 2, columns: int = 9) -> torch.Tensor:
    """(B, T, V) of one plain pass over ids that differ from row to row."""
    vocabulary = engine.model.spec.vocabulary
    ids = (torch.arange(rows * columns).view(rows, columns) * 37 + 11) % vocabulary
    places = torch.arange(columns).expand(rows, -1)
    return engine.model.forward(ids, places, None, None, columns)


def difference(engine: Engine, other: Engine, **shape: int) -> float:
    """Largest difference of two engines' logits, as a part of the largest of `other`."""
    theirs = logits_of(other, **shape).double()
    return ((logits_of(engine, **shape).double() - theirs).abs().max() / theirs.abs().max()).item()


def kinds(engine: Engine) -> Counter:
    return Counter(type(module) for module in inner(engine.model).modules())


@pytest.mark.parametrize("weights", STORED)
@pytest.mark.parametrize("name", MODELS)
def test_logits_stay_near_those_of_fp32(name, weights):
    engine, plain = engine_of(name, weights), engine_of(name)
    assert logits_of(engine).dtype == torch.float32
    for columns in (1, 2, FEW_ROWS + 1):  # each way to multiply
        assert difference(engine, plain, rows=1, columns=columns) < BOUND[weights], columns


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", STORED)
def test_sixteen_bits_may_be_computed_in(weights, dtype):
    for name in ("gpt2", "llama"):
        engine = engine_of(name, weights, dtype)
        assert logits_of(engine).dtype == dtype
        assert difference(engine, engine_of(name)) < BOUND[weights]


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_is_converted_and_nothing_else(name):
    plain, engine = kinds(engine_of(name)), kinds(engine_of(name, "int8"))
    matrices = plain[Linear] + plain[nn.Linear] + plain[Conv1D]
    assert engine[Int8Linear] == matrices
    assert engine[Int8Embedding] == 1
    assert engine[nn.Embedding] == plain[nn.Embedding] - 1  # places
    assert engine[nn.LayerNorm] == plain[nn.LayerNorm]
    assert not engine[Linear] + engine[nn.Linear] + engine[Conv1D]
    halves = kinds(engine_of(name, "bfloat16"))
    assert (halves[Bfloat16Linear], halves[Bfloat16Embedding]) == (matrices, 1)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_the_tensors_and_parameters_the_true_ones(name):
    plain, half, int8 = (engine_of(name, weights).model.spec for weights in ("native", *STORED))
    assert (plain.weights, half.weights, int8.weights) == ("native", *STORED)
    for spec in (half, int8):
        assert (spec.parameters, spec.block_parameters) == (plain.parameters, plain.block_parameters)
        assert (spec.dtype, spec.dtype_bytes) == ("float32", 4)
    read = plain.block_parameters + plain.width * plain.vocabulary
    assert weight_bytes(plain) == plain.parameters * 4
    assert pass_bytes(plain, kv_bytes=0) == 4 * read
    assert pass_bytes(half, kv_bytes=7) == 2 * read + 7
    model = inner(engine_of(name, "int8").model)
    rows = sum(module.weight.shape[0] for module in model.modules() if isinstance(module, Int8Linear))
    assert pass_bytes(int8, kv_bytes=0) == read + 4 * rows
    tied = ends(model)[0].weight.data_ptr() == ends(model)[1].weight.data_ptr()
    converted = read if tied else read + plain.width * plain.vocabulary
    scales = rows if tied else rows + plain.vocabulary
    assert weight_bytes(half) == 4 * plain.parameters - 2 * converted
    assert weight_bytes(int8) == 4 * plain.parameters - 3 * converted + 4 * scales


def test_gpt2_small_has_48_projections_and_one_table():
    """Case E1: 339.7 MB of projections become 84.9 MB, and the tied head stays tied."""
    config = GPT2Config(vocab_size=131, **NO_SPECIAL)  # the vocabulary is counted below, without filling it
    model = GPT2LMHeadModel(config).eval()
    engine = Engine(model, Letters(), weights="int8")
    projections = [m for m in engine.model.blocks.modules() if isinstance(m, Int8Linear)]
    assert len(projections) == 48
    assert all(module.weight.dtype == torch.int8 for module in projections)
    converted = sum(module.weight.nbytes for module in projections)
    assert (round(4 * converted / 1e6, 1), round(converted / 1e6, 1)) == (339.7, 84.9)
    spec = engine.model.spec
    assert spec.block_parameters == converted == 84_934_656
    scales = 4 * (sum(module.scale.numel() for module in projections) + 131)
    assert spec.pass_weight_bytes == converted + 131 * 768 + scales
    small = 4 * (spec.parameters - converted - 131 * 768)  # norms, biases and places, in fp32
    assert spec.stored_bytes == spec.pass_weight_bytes + small


@pytest.mark.parametrize("weights", STORED)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt2, adapter", "opt, adapter"])
def test_a_tied_head_stays_tied(name, weights):
    table, head = ends(inner(engine_of(name, weights).model))
    assert head.weight.data_ptr() == table.weight.data_ptr()
    if weights == "int8":
        assert head.scale.data_ptr() == table.scale.data_ptr()
    assert head.weight.shape == table.weight.shape


@pytest.mark.parametrize("weights", STORED)
def test_an_untied_head_gets_its_own(weights):
    table, head = ends(inner(engine_of("gpt2, untied", weights).model))
    assert head.weight.data_ptr() != table.weight.data_ptr()


@pytest.mark.parametrize("name", ["gpt2", "llama, untied", "gpt2, adapter", "llama, adapter"])
def test_a_stored_copy_changes_nothing_in_the_plain_model(name):
    make, implementation = MODELS[name]
    model = make().float()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plain = Engine(model, Letters(), implementation=implementation)
    logits = logits_of(plain)
    for weights in STORED:
        for source in (model, plain.model):
            other = Engine(source, Letters(), implementation=implementation, weights=weights)
            assert other.model.spec.weights == weights
            assert not torch.equal(logits_of(other), logits)
    assert torch.equal(logits_of(plain), logits)
    assert plain.model.spec.weights == "native"
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_no_value_is_off_by_more_than_half_a_step_of_its_row():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(131, 36, generator=generator) * torch.logspace(-6, 3, 131)[:, None]  # (O, I)
    steps, scale = quantize(rows)
    assert (steps.dtype, scale.dtype, steps.shape, scale.shape) == (
        torch.int8,
        torch.float32,
        (131, 36),
        (131,),
    )
    assert torch.equal(steps.abs().amax(1), torch.full((131,), 127))
    wrong = (steps.double() * scale.double()[:, None] - rows.double()).abs()
    assert (wrong <= scale.double()[:, None] / 2 * (1 + 1e-5)).all()  # what fp32 division rounds
    assert torch.equal(scale, rows.abs().amax(1) / 127)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_zeros_stay_zeros(dtype):
    rows = torch.zeros(5, 32, dtype=dtype)
    rows[2] = 1e-30
    steps, scale = quantize(rows)
    assert scale.isfinite().all()
    assert (scale > 0).all()  # 0 / 0 becomes an int8 of the machine's choice
    assert steps[[0, 1, 3, 4]].count_nonzero() == 0
    assert steps[2].eq(127).all()
    layer = Int8Linear(steps, scale, bias=None)
    assert layer(torch.ones(2, 32))[:, [0, 1, 3, 4]].count_nonzero() == 0


@pytest.mark.parametrize("source", ["ours", "nn.Linear", "Conv1D"])
def test_each_kind_of_linear_keeps_its_direction(source):
    """A square matrix on its side would fit as well."""
    square = torch.randn(32, 32, generator=torch.Generator().manual_seed(5))
    module = {
        "ours": lambda: Linear(32, 32),
        "nn.Linear": lambda: nn.Linear(32, 32),
        "Conv1D": lambda: Conv1D(32, 32),
    }
    parent = nn.Sequential(module[source]()).requires_grad_(False)
    parent[0].weight.copy_(square)
    parent[0].bias.fill_(0.5)
    x = torch.randn(6, 32)
    expected = parent(x)
    for kind in storage.STORAGES.values():
        swapped = nn.Sequential(*parent)
        storage._store_layers(swapped, kind, None)
        assert (swapped(x) - expected).abs().max() < 0.03 * expected.abs().max()
        assert swapped[0].weight.is_contiguous()
        assert swapped[0].bias is parent[0].bias
    assert torch.equal(parent[0].weight, square)


@pytest.mark.parametrize("inputs", [1, 7, 16, 31, 36, 64, 131])
def test_products_of_any_shape(inputs):
    """torch's int8 kernel crashes where the inputs are no multiple of 16."""
    generator = torch.Generator().manual_seed(inputs)
    for outputs in (1, 5, 36, 131):
        rows = torch.randn(outputs, inputs, generator=generator)
        layers = [
            Int8Linear(*quantize(rows), bias=None),
            Bfloat16Linear(*storage.as_bfloat16(rows), bias=None),
        ]
        for count in (1, 2, FEW_ROWS, FEW_ROWS + 1):
            x = torch.randn(count, inputs, generator=generator)
            allowed = 0.02 * (x.abs() @ rows.abs().t() + x.abs().sum(1, keepdim=True) * rows.abs().amax(1))
            for layer in layers:
                assert ((layer(x) - x @ rows.t()).abs() <= allowed).all()


def test_a_large_matrix_is_widened_in_pieces(monkeypatch):
    layer = Int8Linear(*quantize(torch.randn(131, 36)), bias=None)
    x = torch.randn(FEW_ROWS + 1, 36)
    whole = layer(x)
    monkeypatch.setattr(storage, "LARGE", 36 * 100)
    monkeypatch.setattr(storage, "WIDENED", 36 * 50)
    assert (layer(x) - whole).abs().max() < 0.01 * whole.abs().max()


def test_a_cpu_without_bfloat16_widens_instead(monkeypatch):
    expected = {weights: logits_of(engine_of("gpt2", weights)) for weights in STORED}
    monkeypatch.setattr(storage, "multiplies_bfloat16", lambda: False)
    for weights in STORED:
        found = logits_of(engine_of("gpt2", weights))
        assert (found - expected[weights]).abs().max() < BOUND[weights] * expected[weights].abs().max()
    assert not kinds(engine_of("gpt2", dtype=torch.bfloat16))[PackedLinear]


@pytest.mark.parametrize("weights", STORED)
@pytest.mark.parametrize("name", ["gpt2", "llama", "opt, adapter"])
def test_ways_agree_but_for_near_ties(name, weights):
    """Case A4: shapes choose other kernels, so a tie may turn; anything more is a fault."""
    engine = engine_of(name, weights)
    assert all(check.passed for check in run_checks(engine.model, HONEST, engine.device)), CHECKS
    requests = engine.requests(RAGGED, SamplingParams(12, ignore_eos=True))
    results = {
        recipe.key: (recipe, fold(recipe.mode, requests, engine.run(requests, mode=recipe.mode)))
        for recipe in map(recipe_named, USUAL_KEYS)
    }
    found = compare(engine, requests, results)
    assert {comparison.verdict for comparison in found} <= {"identical", "near-tie"}


def test_rounding_is_that_of_bfloat16_where_weights_are_stored_smaller():
    logits = torch.tensor([10.0])
    assert tolerance(logits, "int8") == tolerance(logits.bfloat16()) == 0.5
    assert tolerance(logits) == pytest.approx(0.01)


@packs
@pytest.mark.parametrize("name", ["gpt2", "gpt2, untied", "gpt2, odd", "llama", "llama, odd", "qwen2"])
def test_layers_that_compute_in_bfloat16_are_packed(name):
    engine, plain = engine_of(name, dtype=torch.bfloat16), engine_of(name)
    kind, tied = kinds(engine), isinstance(engine.model.head, Bfloat16Linear)
    assert tied == (plain.model.head.weight.data_ptr() == plain.model.tokens.weight.data_ptr())
    assert kind[PackedLinear] == kinds(plain)[Linear] + (not tied)
    if tied:
        assert engine.model.head.weight.data_ptr() == engine.model.tokens.weight.data_ptr()
    for rows in (1, 2):
        assert difference(engine, plain, rows=rows) < BOUND["bfloat16"]
    spec, fp32 = engine.model.spec, plain.model.spec
    assert (spec.parameters, spec.block_parameters) == (fp32.parameters, fp32.block_parameters)
    assert (spec.stored_bytes, spec.pass_weight_bytes) == (
        fp32.stored_bytes // 2,
        fp32.pass_weight_bytes // 2,
    )
    assert spec.weights == "native"


@packs
def test_a_packed_weight_can_be_read_again():
    rows = torch.randn(131, 36).bfloat16()
    assert torch.equal(PackedLinear(rows, bias=None).weight, rows)


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_load_stores_what_it_reads(tmp_path, implementation):
    folder = tmp_path / "tiny"
    write_gpt2(folder)
    plain = load(str(folder), implementation=implementation)
    for weights in STORED:
        engine = load(str(folder), implementation=implementation, weights=weights)
        assert engine.model.spec.weights == weights
        assert engine.describe().weight_bytes == engine.model.spec.stored_bytes
        assert difference(engine, plain) < BOUND[weights]
    torch.set_num_threads(1)  # `load` takes all cores


def test_a_swap_frees_what_it_replaces_before_the_next():
    """Else laying a model out anew takes its memory twice."""
    swapped: list[weakref.ref] = []

    def made(child: nn.Module) -> nn.Module | None:
        if not isinstance(child, Linear):
            return None
        assert all(one() is None for one in swapped)
        swapped.append(weakref.ref(child))
        return nn.Identity()

    model = Engine(make_gpt2(), Letters()).model
    swap(model, made)
    assert len(swapped) == 8
    assert not any(isinstance(part, Linear) for part in model.modules())


def test_what_cannot_be_stored_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="native, bfloat16, int8") as unknown:
        load("no-such-model", weights="int4")
    engine = engine_of("gpt2", "int8")
    with pytest.raises(InputError, match="load it again") as twice:
        store(engine.model, "bfloat16")
    assert is_one_sentence(str(unknown.value))
    assert is_one_sentence(str(twice.value))
