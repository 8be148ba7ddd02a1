// What a pass of many columns does between its products, which are torch's: norms, positions, attention and the MLP's
// activation, each in one reading of its numbers instead of one for every operation. What goes into a product and comes
// out of it is float32, or bfloat16 where the product is; what is computed here, float32.

#pragma once

#include "model.h"

struct Columns {
    int64_t rows, columns, stored, capacity, threads;
    const float *cos, *sin;  // (B, T, D / 2) of every column's angles, or null
    const bool* mask;        // (B, T, S), true where a column may look, or null: at itself and all before it
    float *keys, *values;    // (B, G, capacity, D)
    float* queries;          // (B, T, H D), rotated
    const void* qkv;         // (B, T, (H + 2G) D)
    void* attended;          // (B, T, H D)
};

namespace {

using Half = uint16_t;  // bfloat16

// `count` numbers as float32, in `room` where they are not.
const float* widened(const float* from, int64_t, std::vector<float>&) { return from; }
const float* widened(const Half* from, int64_t count, std::vector<float>& room) {
    room.resize(count);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Numbers some = load(from + i);
        std::memcpy(room.data() + i, &some, sizeof some);
    }
    for (; i < count; i++) room[i] = load_one(from + i);
    return room.data();
}
// Where to write `count` numbers that become those of `to`: there, or in `room`, from which `narrow` brings them.
float* wide_room(float* to, int64_t, std::vector<float>&) { return to; }
float* wide_room(Half*, int64_t count, std::vector<float>& room) {
    room.resize(count);
    return room.data();
}
void narrow(const float*, int64_t, float*) {}
void narrow(const float* from, int64_t count, Half* to) {  // to the nearest, of two the even one
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = raw<uint32_t>(from + i);
        to[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
}

constexpr int QUERIES = 6, REGISTERS = 4;     // that are computed together: 24 sums, each in a register
constexpr int64_t BLOCK = REGISTERS * LANES;  // columns

// What one thread needs to attend to one row's group of heads.
struct Attention {
    std::vector<float> outs[QUERIES];  // (D) each, where they become bfloat16
    std::vector<float> keys, scores;   // (D, S) and (QUERIES, S), S in whole BLOCKs and more
    int64_t stride;                    // that S
};

// Rotate the queries and the key of a column, and keep key and value.
template <class Number>
void keep(const Model& model, const Columns& pass, int64_t row, int64_t column) {
    static thread_local std::vector<float> room;
    const int64_t size = model.head_size, half = size / 2, at = row * pass.columns + column;
    const int64_t heads = model.heads + 2 * model.kv_heads;
    const float* qkv = widened(static_cast<const Number*>(pass.qkv) + at * heads * size, heads * size, room);
    auto turned = [&](int64_t head, float* to) {
        if (!pass.cos) std::copy_n(qkv + head * size, size, to);
        else rotate(qkv + head * size, pass.cos + at * half, pass.sin + at * half, half, to);
    };
    for (int64_t head = 0; head < model.heads; head++) turned(head, pass.queries + (at * model.heads + head) * size);
    for (int64_t group = 0; group < model.kv_heads; group++) {
        const int64_t place = ((row * model.kv_heads + group) * pass.capacity + pass.stored + column) * size;
        turned(model.heads + group, pass.keys + place);
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

// QUERIES of one row's group of heads, from `first` on, column by column; behind the last one, that one again.
template <class Number>
void attend(const Model& model, const Columns& pass, int64_t row, int64_t group, int64_t first, Attention& own) {
    const int64_t size = model.head_size, heads = model.heads / model.kv_heads, seen = pass.stored + pass.columns;
    const float *queries[QUERIES], *values = pass.values + (row * model.kv_heads + group) * pass.capacity * size;
    Number* targets[QUERIES];
    float* outs[QUERIES];
    int64_t visible[QUERIES];
    for (int q = 0; q < QUERIES; q++) {
        const int64_t place = std::min(first + q, pass.columns * heads - 1), column = place / heads;
        const int64_t at = row * pass.columns + column, head = group * heads + place % heads;
        queries[q] = pass.queries + (at * model.heads + head) * size;
        targets[q] = static_cast<Number*>(pass.attended) + (at * model.heads + head) * size;
        outs[q] = wide_room(targets[q], size, own.outs[q]);
        visible[q] = pass.stored + column + 1;
    }
    const int64_t columns = visible[QUERIES - 1];
    score(queries, size, columns, own);
    float totals[QUERIES];
    for (int q = 0; q < QUERIES; q++) {
        float* shares = own.scores.data() + q * own.stride;
        const int64_t at = row * pass.columns + visible[q] - pass.stored - 1;
        const bool* may = pass.mask ? pass.mask + at * seen : nullptr;
        totals[q] = softmax(shares, visible[q], 1 / std::sqrt(static_cast<float>(size)), may);
        std::fill(shares + visible[q], shares + columns, 0.0f);
    }
    mix<QUERIES>(own.scores.data(), own.stride, totals, values, columns, size, outs);
    for (int q = 0; q < QUERIES; q++) narrow(outs[q], size, targets[q]);
}

void lay_out_keys(const float* keys, int64_t columns, int64_t size, Attention& own) {
    own.stride = (columns + BLOCK - 1) / BLOCK * BLOCK + LANES;  // no power of two, which few places of a cache share
    own.keys.assign(size * own.stride, 0.0f), own.scores.resize(QUERIES * own.stride);
    for (int64_t c = 0; c < columns; c++)
        for (int64_t d = 0; d < size; d++) own.keys[d * own.stride + c] = keys[c * size + d];
}


template <class Number>
void attend(const Model& model, const Columns& pass) {
    const int64_t heads = model.heads / model.kv_heads;
    const int64_t blocks = (pass.columns * heads + QUERIES - 1) / QUERIES, groups = pass.rows * model.kv_heads;
#pragma omp parallel num_threads(pass.threads)
    {
        static thread_local Attention own;
#pragma omp for
        for (int64_t at = 0; at < pass.rows * pass.columns; at++)
            keep<Number>(model, pass, at / pass.columns, at % pass.columns);
        for (int64_t group = 0; group < groups; group++) {
            lay_out_keys(pass.keys + group * pass.capacity * model.head_size, pass.stored + pass.columns, model.head_size,
                         own);
#pragma omp for schedule(dynamic, 8) nowait  // later columns see more
            for (int64_t block = 0; block < blocks; block++)
                attend<Number>(model, pass, group / model.kv_heads, group % model.kv_heads, block * QUERIES, own);
        }
    }
}

template <class Number>
void normalise(const Norm& norm, int64_t rows, int64_t width, float* x, const Number* added, Number* out, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        static thread_local std::vector<float> more, room;
        float *own = x + row * width, *wide = wide_room(out + row * width, width, room);
        if (added) {
            const float* from = widened(added + row * width, width, more);
            for (int64_t i = 0; i < width; i++) own[i] += from[i];
        }
        normalise(norm, width, own, wide);
        narrow(wide, width, out + row * width);
    }
}

template <class Number>
void activate(const Model& model, int64_t rows, const Number* in, Number* out, int64_t threads) {
    const int64_t inner = model.inner, inputs = model.gated ? 2 * inner : inner;
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        static thread_local std::vector<float> more, room;
        const float* from = widened(in + row * inputs, inputs, more);
        float* wide = wide_room(out + row * inner, inner, room);
        activate(model, from, from + inner, inner, wide);
        narrow(wide, inner, out + row * inner);
    }
}

}  // namespace

// What goes into a product or comes out of it is bfloat16 where `half`, in all three.

// Keep the new columns' keys and values, rotated, and attend with every query to what it may see.
extern "C" void kshipra_attend(const Model* model, const Columns* pass, bool half) {
    half ? attend<Half>(*model, *pass) : attend<float>(*model, *pass);
}

// x (R, W) += added, where there is one; out (R, W) = norm(x).
extern "C" void kshipra_normalise(const Norm* norm, int64_t rows, int64_t width, float* x, const void* added, void* out,
                                  int64_t threads, bool half) {
    if (half) normalise(*norm, rows, width, x, static_cast<const Half*>(added), static_cast<Half*>(out), threads);
    else normalise(*norm, rows, width, x, static_cast<const float*>(added), static_cast<float*>(out), threads);
}

// out (R, I) of in (R, I or 2I): gelu, or silu of the first half times the second.
extern "C" void kshipra_activate(const Model* model, int64_t rows, const void* in, void* out, int64_t threads, bool half) {
    if (half) activate(*model, rows, static_cast<const Half*>(in), static_cast<Half*>(out), threads);
    else activate(*model, rows, static_cast<const float*>(in), static_cast<float*>(out), threads);
}
