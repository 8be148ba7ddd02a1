// What a model is, and what its parts compute of one row, whoever walks over the rows.

#pragma once

#include "products.h"

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

namespace {

constexpr float HIDDEN = -1e30f;  // a score whose exponential is 0; -ffast-math knows no infinity

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

// Scores (columns) to shares of what is given back: their sum. Hidden columns get none.
float softmax(float* scores, int64_t columns, float scale, const bool* visible) {
    float largest = HIDDEN, total = 0;
    for (int64_t c = 0; visible && c < columns; c++) scores[c] = visible[c] ? scores[c] : HIDDEN;
    for (int64_t c = 0; c < columns; c++) largest = std::max(largest, scores[c]);
    for (int64_t c = 0; c < columns; c++) total += scores[c] = std::exp((scores[c] - largest) * scale);
    return total;
}

// From `i` on while N registers fit; gives where it ends.
template <int Q, int N>
int64_t mix(const float* shares, int64_t stride, const float* totals, const float* values, int64_t columns, int64_t size,
            int64_t i, float* const* outs) {
    for (; i + N * LANES <= size; i += N * LANES) {
        Numbers sums[Q][N] = {};
        for (int64_t c = 0; c < columns; c++)
            for (int n = 0; n < N; n++) {
                const Numbers value = load(values + c * size + i + n * LANES);
                for (int q = 0; q < Q; q++) sums[q][n] += value * shares[q * stride + c];
            }
        for (int q = 0; q < Q; q++) {
            for (int n = 0; n < N; n++) sums[q][n] *= 1 / totals[q];
            std::memcpy(outs[q] + i, sums[q], sizeof sums[q]);
        }
    }
    return i;
}

// outs (Q, D) = the sums of values (columns, D), each times its share, of which there are `totals`; Q rows of shares.
template <int Q>
void mix(const float* shares, int64_t stride, const float* totals, const float* values, int64_t columns, int64_t size,
         float* const* outs) {
    int64_t i = mix<Q, 4>(shares, stride, totals, values, columns, size, 0, outs);
    for (i = mix<Q, 1>(shares, stride, totals, values, columns, size, i, outs); i < size; i++)
        for (int q = 0; q < Q; q++) {
            float sum = 0;
            for (int64_t c = 0; c < columns; c++) sum += values[c * size + i] * shares[q * stride + c];
            outs[q][i] = sum / totals[q];
        }
}

// out (I) = gelu(in), or silu(in) * up; out may be in.
void activate(const Model& model, const float* in, const float* up, int64_t inner, float* out) {
    if (model.gated)
#pragma omp simd
        for (int64_t i = 0; i < inner; i++) out[i] = in[i] / (1 + std::exp(-in[i])) * up[i];
    else
#pragma omp simd
        for (int64_t i = 0; i < inner; i++) {  // 1 - 2 / (1 + e^2z) is tanh z
            const float twice = 1.5957691216057308f * (in[i] + 0.044715f * in[i] * in[i] * in[i]);
            out[i] = in[i] * (1 - 1 / (1 + std::exp(twice)));
        }
}

}  // namespace
