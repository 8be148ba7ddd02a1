// One decode step of GPT-2 or Llama: one new column for every row, from the layers' input to the logits, in one
// parallel region. What it computes is written in models/gpt2.py and models/llama.py; the tests hold the two together.
//
// Shapes as in models/__init__.py: B rows, S stored columns, H query heads, G key/value heads, D head size, W width,
// I inner width of the MLP, V vocabulary. Everything is computed in float32, whatever the weights are stored as.

#include <atomic>

#include "columns.h"
#include "model.h"
#include "wide.h"

struct Step {
    int64_t rows, stored, capacity, threads;
    const int64_t* positions;  // (B)
    const bool* mask;          // (B, S + 1), true where the new column may look, or null: everywhere
    float* const* cache;       // K and V of every layer, each (B, G, capacity, D)
    float *x, *qkv, *attended, *inner, *logits;  // (B, W), (B, (H + 2G) D), (B, H D), (B, I or 2I), (B, V)
};

namespace {

constexpr int SPINS = 20000;  // some 20 microseconds, more than threads on free cores are ever apart

// All threads meet here. OpenMP's own barrier spins for milliseconds, which on a core that others use too keeps the
// very thread from running that is waited for: 30 times slower. Here who waits long goes to sleep.
class Meeting {
    std::atomic<int64_t> arrived{0};
    std::atomic<int64_t> round{0};

  public:
    void wait(int64_t threads) {
        const int64_t now = round.load();
        if (arrived.fetch_add(1) + 1 == threads) {
            arrived = 0;
            round++;
            round.notify_all();
            return;
        }
        for (int spins = 0; spins < SPINS; spins++)
            if (round.load(std::memory_order_acquire) != now) return;
        round.wait(now);
    }
};

// What one thread needs for itself.
struct Scratch {
    std::vector<float> normed, cos, sin, query, key, scores;
    Input input, queries;
};

// All heads of one row that share keys: rotate, keep the new key and value, attend over all that is stored.
void attend(const Model& model, const Step& step, int64_t layer, int64_t row, int64_t group, Scratch& own) {
    const int64_t size = model.head_size, half = size / 2, heads = model.heads / model.kv_heads;
    const float* qkv = step.qkv + row * (model.heads + 2 * model.kv_heads) * size;
    const float *query = qkv + group * heads * size, *key = qkv + (model.heads + group) * size;
    const float* value = qkv + (model.heads + model.kv_heads + group) * size;
    if (model.frequencies) {
        const float *cos = own.cos.data() + row * half, *sin = own.sin.data() + row * half;
        for (int64_t h = 0; h < heads; h++) rotate(query + h * size, cos, sin, half, own.query.data() + h * size);
        rotate(key, cos, sin, half, own.key.data());
        query = own.query.data(), key = own.key.data();
    }
    const int64_t start = (row * model.kv_heads + group) * step.capacity * size, columns = step.stored + 1;
    float *keys = step.cache[2 * layer] + start, *values = step.cache[2 * layer + 1] + start;
    std::copy(key, key + size, keys + step.stored * size);
    std::copy(value, value + size, values + step.stored * size);
    own.queries.set(query, heads, size, FLOAT32);
    product({keys, nullptr, nullptr, size, columns, FLOAT32}, own.queries, 0, columns, own.scores.data(), false);
    const bool* visible = step.mask ? step.mask + row * columns : nullptr;
    for (int64_t h = 0; h < heads; h++) {
        float *shares = own.scores.data() + h * columns;
        float* out = step.attended + (row * model.heads + group * heads + h) * size;
        const float total = softmax(shares, columns, 1 / std::sqrt(static_cast<float>(size)), visible);
        mix<1>(shares, columns, &total, values, columns, size, &out);
    }
}

// This thread's share of the MLP's inner width: gelu(in), or silu(gate) * up written over the gates.
void mlp_in(const Model& model, const Step& step, const Matrix& matrix, int64_t first, int64_t last, Scratch& own) {
    product(matrix, own.input, first, last, step.inner, false);
    if (model.gated) product(matrix, own.input, model.inner + first, model.inner + last, step.inner, false);
    for (int64_t row = 0; row < step.rows; row++) {
        float* in = step.inner + row * matrix.outputs;
        const float* up = in + model.inner;
        activate(model, in + first, up + first, last - first, in + first);
    }
}

void work(const Model& model, const Step& step, Meeting& meeting, int64_t thread, int64_t threads) {
    static thread_local Scratch own;
    const Tiles tiles;
    const int64_t rows = step.rows, width = model.width, half = model.head_size / 2;
    own.normed.resize(rows * std::max(width, model.inner));
    own.query.resize(model.heads * model.head_size), own.key.resize(model.head_size);
    own.scores.resize(model.heads * (step.stored + 1));
    if (model.frequencies) {
        own.cos.resize(rows * half), own.sin.resize(rows * half);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < half; i++) {
                const float angle = static_cast<float>(step.positions[row]) * model.frequencies[i];
                own.cos[row * half + i] = std::cos(angle), own.sin[row * half + i] = std::sin(angle);
            }
    }
    auto share = [&](int64_t count, int64_t of) {  // where this thread's part of `count` begins, in whole tiles
        return std::min(count, (count + 15) / 16 * of / threads * 16);
    };
    auto from = [&](int64_t count) { return share(count, thread); };
    auto to = [&](int64_t count) { return share(count, thread + 1); };
    auto normed = [&](const Norm& norm, const Matrix& matrix) {  // every thread for itself: cheaper than waiting
        for (int64_t row = 0; row < rows; row++)
            normalise(norm, width, step.x + row * width, own.normed.data() + row * width);
        own.input.set(own.normed.data(), rows, width, matrix.format);
    };
    for (int64_t index = 0; index < model.layer_count; index++) {
        const Layer& layer = model.layers[index];
        normed(layer.attention_norm, layer.qkv);
        product(layer.qkv, own.input, from(layer.qkv.outputs), to(layer.qkv.outputs), step.qkv, false);
        meeting.wait(threads);
        const int64_t tasks = rows * model.kv_heads;
        for (int64_t task = tasks * thread / threads; task < tasks * (thread + 1) / threads; task++)
            attend(model, step, index, task / model.kv_heads, task % model.kv_heads, own);
        meeting.wait(threads);
        own.input.set(step.attended, rows, layer.attention_out.inputs, layer.attention_out.format);
        product(layer.attention_out, own.input, from(width), to(width), step.x, true);
        meeting.wait(threads);
        normed(layer.mlp_norm, layer.mlp_in);
        mlp_in(model, step, layer.mlp_in, from(model.inner), to(model.inner), own);
        meeting.wait(threads);
        const float* inner = step.inner;
        if (model.gated) {  // the gates' half of (B, 2I)
            for (int64_t row = 0; row < rows; row++)
                std::copy_n(inner + row * 2 * model.inner, model.inner, own.normed.data() + row * model.inner);
            inner = own.normed.data();
        }
        own.input.set(inner, rows, model.inner, layer.mlp_out.format);
        product(layer.mlp_out, own.input, from(width), to(width), step.x, true);
        meeting.wait(threads);
    }
    normed(model.norm, model.head);
    product(model.head, own.input, from(model.head.outputs), to(model.head.outputs), step.logits, false);
}

}  // namespace

extern "C" void kshipra_decode(const Model* model, const Step* step) {
    Meeting meeting;
#pragma omp parallel num_threads(step->threads)
    work(*model, *step, meeting, omp_get_thread_num(), omp_get_num_threads());
}
