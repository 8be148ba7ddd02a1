// One decode step of GPT-2 or Llama: one new column for every row, from the layers' input to the logits, in one
// parallel region. What it computes is written in models/gpt2.py and models/llama.py; the tests hold the two together.
//
// Shapes as in models/__init__.py: B rows, S stored columns, H query heads, G key/value heads, D head size, W width,
// I inner width of the MLP, V vocabulary. Everything is computed in float32, whatever the weights are stored as.

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

enum Format : int64_t { FLOAT32, BFLOAT16, INT8 };

struct Matrix {
    const void* weight;  // (outputs, inputs)
    const float* scale;  // (outputs), for INT8
    const float* bias;   // (outputs), or null
    int64_t inputs, outputs;
    Format format;
};

struct Norm {
    const float *weight, *bias;  // without bias it is RMSNorm, with one LayerNorm
    float epsilon;
};

struct Layer {
    Norm attention_norm, mlp_norm;
    Matrix qkv, attention_out, mlp_in, mlp_out;  // gated: mlp_in gives gate and up, 2 * I
};

struct Model {
    const Layer* layers;
    int64_t layer_count, width, inner, heads, kv_heads, head_size;
    int64_t gated;             // silu(gate) * up, else gelu
    const float* frequencies;  // (D / 2) of rotary positions, or null
    Norm norm;
    Matrix head;
};

struct Step {
    int64_t rows, stored, capacity, threads;
    const int64_t* positions;  // (B)
    const bool* mask;          // (B, S + 1), true where the new column may look, or null: everywhere
    float* const* cache;       // K and V of every layer, each (B, G, capacity, D)
    float *x, *qkv, *attended, *inner, *logits;  // (B, W), (B, (H + 2G) D), (B, H D), (B, I or 2I), (B, V)
};

namespace {

constexpr int TILE = 4;       // outputs that are computed together, so that sums do not wait for each other
constexpr int GROUP = 4;      // rows that take a weight while it is in a register
constexpr int SPINS = 20000;  // some 20 microseconds, more than threads on free cores are ever apart

// Sixteen numbers: one register of AVX-512, two of AVX2, four of NEON; the compiler sees to that.
constexpr int LANES = 16;
typedef float Numbers __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));

template <class Vector>
Vector raw(const void* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
Numbers load(const float* from) { return raw<Numbers>(from); }
Numbers load(const int8_t* from) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    return __builtin_convertvector(raw<Bytes>(from), Numbers);
}
Numbers load(const uint16_t* from) {  // bfloat16 is the upper half of a float32
    typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
    return reinterpret_cast<Numbers>(__builtin_convertvector(raw<Halves>(from), Bits) << 16);
}
template <class Weight>
float load_one(const Weight* from) {
    Weight padded[LANES] = {*from};
    return load(padded)[0];
}
float sum_of(Numbers values) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += values[i];
    return sum;
}

// A product's input: (B, inputs) in float32, and for INT8 the same in 16-bit integers, scaled block by block.
struct Input {
    const float* values;
    int64_t rows, size, block;
    std::vector<int16_t> rounded;
    std::vector<float> scales;  // (B, blocks)

    void set(const float* from, int64_t row_count, int64_t inputs, Format format) {
        values = from, rows = row_count, size = inputs, block = 0;
#ifdef __AVX512VNNI__
        for (int64_t fits : {192, 128, 64})
            if (format == INT8 && !block && size % fits == 0) block = fits;
        if (block) round();
#endif
    }

    void round() {
        rounded.resize(rows * size), scales.resize(rows * size / block);
        for (int64_t start = 0; start < rows * size; start += block) {
            float largest = 1e-30f;
            for (int64_t i = start; i < start + block; i++) largest = std::max(largest, std::fabs(values[i]));
            scales[start / block] = largest / 32767;
            for (int64_t i = start; i < start + block; i++)
                rounded[i] = static_cast<int16_t>(std::lrint(values[i] * (32767 / largest)));
        }
    }
};

// sums[r][t] = dot(weight row t, x row r), both of `size` numbers.
template <int R, int T, class Weight>
void dots(const Weight* weight, const float* x, int64_t size, float sums[][TILE]) {
    Numbers total[R][T] = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        Numbers w[T];
        for (int t = 0; t < T; t++) w[t] = load(weight + t * size + i);
        for (int r = 0; r < R; r++) {
            const Numbers a = load(x + r * size + i);
            for (int t = 0; t < T; t++) total[r][t] += w[t] * a;
        }
    }
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) {
            sums[r][t] = sum_of(total[r][t]);
            for (int64_t j = i; j < size; j++) sums[r][t] += load_one(weight + t * size + j) * x[r * size + j];
        }
}

#ifdef __AVX512VNNI__
// The same with both sides as integers: 32 products an instruction, exact within a block of rounded inputs.
template <int R, int T>
void integer_dots(const int8_t* weight, const Input& input, int64_t row, float sums[][TILE]) {
    const int64_t size = input.size, block = input.block;
    const int16_t* x = input.rounded.data() + row * size;
    const float* scales = input.scales.data() + row * size / block;
    __m512 total[R][T] = {};
    for (int64_t start = 0; start < size; start += block) {
        __m512i sum[R][T] = {};
        for (int64_t i = start; i < start + block; i += 32) {
            __m512i w[T];
            for (int t = 0; t < T; t++) w[t] = _mm512_cvtepi8_epi16(raw<__m256i>(weight + t * size + i));
            for (int r = 0; r < R; r++) {
                const __m512i a = raw<__m512i>(x + r * size + i);
                for (int t = 0; t < T; t++) sum[r][t] = _mm512_dpwssd_epi32(sum[r][t], w[t], a);
            }
        }
        for (int r = 0; r < R; r++)
            for (int t = 0; t < T; t++)
                total[r][t] += _mm512_cvtepi32_ps(sum[r][t]) * scales[(r * size + start) / block];
    }
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) sums[r][t] = sum_of(reinterpret_cast<Numbers>(total[r][t]));
}
#endif

// R rows from `row` on with T outputs from `output` on.
template <int R, int T>
void dots_of(const Matrix& matrix, const Input& x, int64_t row, int64_t output, float sums[][TILE]) {
    const float* values = x.values + row * x.size;
    const int64_t start = output * x.size;
    if (matrix.format == FLOAT32)
        return dots<R, T>(static_cast<const float*>(matrix.weight) + start, values, x.size, sums);
    if (matrix.format == BFLOAT16)
        return dots<R, T>(static_cast<const uint16_t*>(matrix.weight) + start, values, x.size, sums);
    const int8_t* weight = static_cast<const int8_t*>(matrix.weight) + start;
#ifdef __AVX512VNNI__
    if (x.block) {
        for (int t = 0; t < T; t += 2) {
            float two[R][TILE];
            integer_dots<R, T == 1 ? 1 : 2>(weight + t * x.size, x, row, two);
            for (int r = 0; r < R; r++) std::copy_n(two[r], T == 1 ? 1 : 2, sums[r] + t);
        }
    } else
#endif
        dots<R, T>(weight, values, x.size, sums);
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) sums[r][t] *= matrix.scale[output + t];
}

template <int T>
void dots_of(const Matrix& matrix, const Input& x, int64_t row, int64_t rows, int64_t output, float sums[][TILE]) {
    if (rows == 1) return dots_of<1, T>(matrix, x, row, output, sums);
    if (rows == 2) return dots_of<2, T>(matrix, x, row, output, sums);
    if (rows == 3) return dots_of<3, T>(matrix, x, row, output, sums);
    dots_of<4, T>(matrix, x, row, output, sums);
}

// Ask for memory before its turn: rows are too short for the processor to notice a stream in each of several.
void prefetch(const void* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
}

// y (B, outputs) = x @ matrix + bias for the outputs from `first` to `last`, added to what y has or in its place.
void product(const Matrix& matrix, const Input& x, int64_t first, int64_t last, float* y, bool add) {
    const int64_t outputs = matrix.outputs;
    for (int64_t row = 0; row < x.rows; row++)
        for (int64_t o = first; o < last; o++)
            y[row * outputs + o] = (add ? y[row * outputs + o] : 0.0f) + (matrix.bias ? matrix.bias[o] : 0.0f);
    const int64_t row_bytes = x.size * (matrix.format == INT8 ? 1 : matrix.format == BFLOAT16 ? 2 : 4);
    for (int64_t o = first; o < last;) {  // all rows take a tile while it is in the cache
        const int64_t tile = last - o >= TILE ? TILE : 1;
        prefetch(static_cast<const char*>(matrix.weight) + (o + tile) * row_bytes, TILE * row_bytes);
        for (int64_t row = 0; row < x.rows; row += GROUP) {
            const int64_t rows = std::min<int64_t>(GROUP, x.rows - row);
            float sums[GROUP][TILE];
            tile == TILE ? dots_of<TILE>(matrix, x, row, rows, o, sums) : dots_of<1>(matrix, x, row, rows, o, sums);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t t = 0; t < tile; t++) y[(row + r) * outputs + o + t] += sums[r][t];
        }
        o += tile;
    }
}

void normalise(const Norm& norm, int64_t width, const float* x, float* out) {
    float mean = 0, square = 0;
    if (norm.bias) {
        for (int64_t i = 0; i < width; i++) mean += x[i];
        mean /= width;
    }
    for (int64_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    const float scale = 1 / std::sqrt(square / width + norm.epsilon);
    for (int64_t i = 0; i < width; i++)
        out[i] = (x[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// out (D) = x turned by a position's angles; dimension i is paired with i + D / 2.
void rotate(const float* x, const float* cos, const float* sin, int64_t half, float* out) {
    for (int64_t i = 0; i < half; i++) {
        const float first = x[i], second = x[i + half];
        out[i] = first * cos[i] - second * sin[i];
        out[i + half] = second * cos[i] + first * sin[i];
    }
}

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
    Input input;
};

// One head of one row: rotate, keep the new key and value, attend over all that is stored and the new column.
void attend(const Model& model, const Step& step, int64_t layer, int64_t row, int64_t head, Scratch& own) {
    const int64_t size = model.head_size, half = size / 2, group = head * model.kv_heads / model.heads;
    const float* qkv = step.qkv + row * (model.heads + 2 * model.kv_heads) * size;
    const float *query = qkv + head * size, *key = qkv + (model.heads + group) * size;
    const float* value = qkv + (model.heads + model.kv_heads + group) * size;
    if (model.frequencies) {
        const float *cos = own.cos.data() + row * half, *sin = own.sin.data() + row * half;
        rotate(query, cos, sin, half, own.query.data());
        rotate(key, cos, sin, half, own.key.data());
        query = own.query.data(), key = own.key.data();
    }
    const int64_t start = (row * model.kv_heads + group) * step.capacity * size;
    float *keys = step.cache[2 * layer] + start, *values = step.cache[2 * layer + 1] + start;
    const bool* visible = step.mask ? step.mask + row * (step.stored + 1) : nullptr;
    const float scale = 1 / std::sqrt(static_cast<float>(size));
    float* scores = own.scores.data();
    auto score = [&](const float* with) {
        float sum = 0;
        for (int64_t i = 0; i < size; i++) sum += query[i] * with[i];
        return sum * scale;
    };
    float largest = scores[step.stored] = score(key);  // a column always sees itself
    for (int64_t c = 0; c < step.stored; c++) {
        scores[c] = visible && !visible[c] ? -INFINITY : score(keys + c * size);
        largest = std::max(largest, scores[c]);
    }
    float total = 0;
    for (int64_t c = 0; c <= step.stored; c++) total += scores[c] = std::exp(scores[c] - largest);
    float* out = step.attended + (row * model.heads + head) * size;
    for (int64_t i = 0; i < size; i++) out[i] = scores[step.stored] * value[i];
    for (int64_t c = 0; c < step.stored; c++)
        for (int64_t i = 0; i < size; i++) out[i] += scores[c] * values[c * size + i];
    for (int64_t i = 0; i < size; i++) out[i] /= total;
    if (head == 0 || group != (head - 1) * model.kv_heads / model.heads) {  // the first head of its group
        std::copy(key, key + size, keys + step.stored * size);
        std::copy(value, value + size, values + step.stored * size);
    }
}

// This thread's share of the MLP's inner width: gelu(in), or silu(gate) * up written over the gates.
void mlp_in(const Model& model, const Step& step, const Matrix& matrix, int64_t first, int64_t last, Scratch& own) {
    product(matrix, own.input, first, last, step.inner, false);
    if (model.gated) product(matrix, own.input, model.inner + first, model.inner + last, step.inner, false);
    for (int64_t row = 0; row < step.rows; row++) {
        float* in = step.inner + row * matrix.outputs;
        if (model.gated)
            for (int64_t i = first; i < last; i++) in[i] = in[i] / (1 + std::exp(-in[i])) * in[model.inner + i];
        else
            for (int64_t i = first; i < last; i++) {
                const float cubic = 0.7978845608028654f * (in[i] + 0.044715f * in[i] * in[i] * in[i]);
                in[i] = 0.5f * in[i] * (1 + std::tanh(cubic));
            }
    }
}

void work(const Model& model, const Step& step, Meeting& meeting, int64_t thread, int64_t threads) {
    static thread_local Scratch own;
    const int64_t rows = step.rows, width = model.width, half = model.head_size / 2;
    own.normed.resize(rows * std::max(width, model.inner));
    own.query.resize(model.head_size), own.key.resize(model.head_size), own.scores.resize(step.stored + 1);
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
        const int64_t tasks = rows * model.heads;
        for (int64_t task = tasks * thread / threads; task < tasks * (thread + 1) / threads; task++)
            attend(model, step, index, task / model.heads, task % model.heads, own);
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
