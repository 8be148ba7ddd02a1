// What a pass of many columns does between its products, which are torch's: norms, positions, attention and the MLP's
// activation, each in one reading of its numbers instead of one for every operation.

#pragma once

#include "model.h"

struct Columns {
    int64_t rows, columns, stored, capacity, threads;
    const float *cos, *sin;  // (B, T, D / 2) of every column's angles, or null
    const bool* mask;        // (B, T, S), true where a column may look, or null: at itself and all before it
    float *keys, *values;    // (B, G, capacity, D)
    float *qkv, *attended;   // (B, T, (H + 2G) D), (B, T, H D)
};

namespace {

constexpr int QUERIES = 6, REGISTERS = 4;       // that are computed together: 24 sums, each in a register
constexpr int64_t BLOCK = REGISTERS * LANES;  // columns

// What one thread needs to attend to one row's group of heads.
struct Attention {
    std::vector<float> keys, scores;  // (D, S) and (QUERIES, S), S in whole BLOCKs and more
    int64_t stride;
};

// Rotate the queries of a column in place and its key, and keep key and value.
void keep(const Model& model, const Columns& pass, int64_t row, int64_t column) {
    const int64_t size = model.head_size, half = size / 2, at = row * pass.columns + column;
    float* qkv = pass.qkv + at * (model.heads + 2 * model.kv_heads) * size;
    static thread_local std::vector<float> turned;
    turned.resize(size);
    for (int64_t head = 0; pass.cos && head < model.heads + model.kv_heads; head++) {
        rotate(qkv + head * size, pass.cos + at * half, pass.sin + at * half, half, turned.data());
        std::copy_n(turned.data(), size, qkv + head * size);
    }
    for (int64_t group = 0; group < model.kv_heads; group++) {
        const int64_t place = ((row * model.kv_heads + group) * pass.capacity + pass.stored + column) * size;
        std::copy_n(qkv + (model.heads + group) * size, size, pass.keys + place);
        std::copy_n(qkv + (model.heads + model.kv_heads + group) * size, size, pass.values + place);
    }
}

// scores (QUERIES, S) of the queries with the first `columns` keys, which are laid out (D, S).
void score(const float* const* queries, int64_t size, int64_t columns, Attention& own) {
    for (int64_t c = 0; c < columns; c += BLOCK) {
        Numbers sums[QUERIES][REGISTERS] = {};
        const float* keys = own.keys.data() + c;
        for (int64_t d = 0; d < size; d++, keys += own.stride)
            for (int n = 0; n < REGISTERS; n++) {
                const Numbers key = load(keys + n * LANES);
                for (int q = 0; q < QUERIES; q++) sums[q][n] += key * queries[q][d];
            }
        for (int q = 0; q < QUERIES; q++) std::memcpy(own.scores.data() + q * own.stride + c, sums[q], sizeof sums[q]);
    }
}

// outs (QUERIES, D) = shares @ values (columns, D), from `i` on while N registers fit; gives where it ends.
template <int N>
int64_t mix(const Attention& own, const float* values, int64_t columns, int64_t size, int64_t i, float* const* outs) {
    for (; i + N * LANES <= size; i += N * LANES) {
        Numbers sums[QUERIES][N] = {};
        for (int64_t c = 0; c < columns; c++)
            for (int n = 0; n < N; n++) {
                const Numbers value = load(values + c * size + i + n * LANES);
                for (int q = 0; q < QUERIES; q++) sums[q][n] += value * own.scores[q * own.stride + c];
            }
        for (int q = 0; q < QUERIES; q++) std::memcpy(outs[q] + i, sums[q], sizeof sums[q]);
    }
    return i;
}

// QUERIES of one row's group of heads, from `first` on, column by column; behind the last one, that one again.
void attend(const Model& model, const Columns& pass, int64_t row, int64_t group, int64_t first, Attention& own) {
    const int64_t size = model.head_size, heads = model.heads / model.kv_heads, seen = pass.stored + pass.columns;
    const float *queries[QUERIES], *values = pass.values + (row * model.kv_heads + group) * pass.capacity * size;
    float* outs[QUERIES];
    int64_t visible[QUERIES];
    for (int q = 0; q < QUERIES; q++) {
        const int64_t place = std::min(first + q, pass.columns * heads - 1), column = place / heads;
        const int64_t at = row * pass.columns + column, head = group * heads + place % heads;
        queries[q] = pass.qkv + (at * (model.heads + 2 * model.kv_heads) + head) * size;
        outs[q] = pass.attended + (at * model.heads + head) * size;
        visible[q] = pass.stored + column + 1;
    }
    const int64_t columns = visible[QUERIES - 1];
    score(queries, size, columns, own);
    for (int q = 0; q < QUERIES; q++) {
        float* shares = own.scores.data() + q * own.stride;
        const int64_t at = row * pass.columns + visible[q] - pass.stored - 1;
        softmax(shares, visible[q], 1 / std::sqrt(static_cast<float>(size)), pass.mask ? pass.mask + at * seen : nullptr);
        std::fill(shares + visible[q], shares + columns, 0.0f);
    }
    int64_t i = mix<REGISTERS>(own, values, columns, size, 0, outs);
    for (i = mix<1>(own, values, columns, size, i, outs); i < size; i++)
        for (int q = 0; q < QUERIES; q++) {
            outs[q][i] = 0;
            for (int64_t c = 0; c < columns; c++) outs[q][i] += values[c * size + i] * own.scores[q * own.stride + c];
        }
}

void lay_out_keys(const float* keys, int64_t columns, int64_t size, Attention& own) {
    own.stride = (columns + BLOCK - 1) / BLOCK * BLOCK + LANES;  // no power of two, which few places of a cache share
    own.keys.assign(size * own.stride, 0.0f), own.scores.resize(QUERIES * own.stride);
    for (int64_t c = 0; c < columns; c++)
        for (int64_t d = 0; d < size; d++) own.keys[d * own.stride + c] = keys[c * size + d];
}

}  // namespace

// Keep the new columns' keys and values, rotated, and attend with every query to what it may see.
extern "C" void kshipra_attend(const Model* model, const Columns* pass) {
    const int64_t heads = model->heads / model->kv_heads;
    const int64_t blocks = (pass->columns * heads + QUERIES - 1) / QUERIES, groups = pass->rows * model->kv_heads;
#pragma omp parallel num_threads(pass->threads)
    {
        static thread_local Attention own;
#pragma omp for
        for (int64_t at = 0; at < pass->rows * pass->columns; at++)
            keep(*model, *pass, at / pass->columns, at % pass->columns);
        for (int64_t group = 0; group < groups; group++) {
            lay_out_keys(pass->keys + group * pass->capacity * model->head_size, pass->stored + pass->columns,
                         model->head_size, own);
#pragma omp for schedule(dynamic, 8) nowait  // later columns see more
            for (int64_t block = 0; block < blocks; block++)
                attend(*model, *pass, group / model->kv_heads, group % model->kv_heads, block * QUERIES, own);
        }
    }
}

// x (R, W) += added, where there is one; out (R, W) = norm(x).
extern "C" void kshipra_normalise(const Norm* norm, int64_t rows, int64_t width, float* x, const float* added, float* out,
                                  int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; added && i < width; i++) x[row * width + i] += added[row * width + i];
        normalise(*norm, width, x + row * width, out + row * width);
    }
}

// out (R, I) of in (R, I or 2I): gelu, or silu of the first half times the second.
extern "C" void kshipra_activate(const Model* model, int64_t rows, const float* in, float* out, int64_t threads) {
    const int64_t inner = model->inner, inputs = model->gated ? 2 * inner : inner;
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++)
        activate(*model, in + row * inputs, in + row * inputs + inner, inner, out + row * inner);
}
