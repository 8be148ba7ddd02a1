// Products of many rows with a float32 matrix, bound by how fast numbers are multiplied: y (R, outputs) = x (R, inputs)
// @ W.
//
// A matrix unit multiplies bfloat16 far faster than float32 is multiplied elsewhere, and three bfloat16 hold a float32
// to its last bit. So where the weights are bfloat16 in truth, as those of many published models are, three products
// of such parts are the product in float32 (after Henry, Tang and Heinecke 2019), in some half of the time. Of other
// weights it would take six, which is faster only while nobody else uses the processor's unit.

#pragma once

#include <omp.h>

#include "products.h"

#ifdef MATRIX_UNIT
namespace {

constexpr int PARTS = 3;                      // bfloat16 that hold a float32
constexpr int64_t PART = SIDE * DEPTH;        // bfloat16 of a tile
constexpr int64_t OUTPUTS = 128, ROWS = 512;  // that are laid out at once: they stay in a core's second cache
constexpr int PAIR = 2 * SIDE;                // outputs, and rows, that are computed together in four tiles

__m512i nearest(Numbers low, Numbers high) { return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low); }

// 16 lines of 16 to 16 columns.
void transpose(__m512i (&lines)[SIDE]) {
    __m512i other[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        other[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
        other[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4)
        for (int half = 0; half < 2; half++) {
            lines[i + 2 * half] = _mm512_unpacklo_epi64(other[i + half], other[i + 2 + half]);
            lines[i + 2 * half + 1] = _mm512_unpackhi_epi64(other[i + half], other[i + 2 + half]);
        }
    for (int i = 0; i < SIDE; i += 8)
        for (int j = 0; j < 4; j++) {
            other[i + j] = _mm512_shuffle_i32x4(lines[i + j], lines[i + 4 + j], 0x88);
            other[i + 4 + j] = _mm512_shuffle_i32x4(lines[i + j], lines[i + 4 + j], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        lines[i] = _mm512_shuffle_i32x4(other[i], other[8 + i], 0x88);
        lines[8 + i] = _mm512_shuffle_i32x4(other[i], other[8 + i], 0xdd);
    }
}

// A row of x in tiles of 16 rows: (R / 16, inputs / 32, PARTS, 16 rows, 32 inputs).
void lay_out_row(const float* x, int64_t row, int64_t inputs, uint16_t* tiles) {
    uint16_t* to = tiles + row / SIDE * SIDE * inputs * PARTS + row % SIDE * DEPTH;
    for (int64_t i = 0; i < inputs; i += DEPTH) {
        Numbers low = load(x + row * inputs + i), high = load(x + row * inputs + i + LANES);
        for (int part = 0; part < PARTS; part++, to += PART) {
            _mm512_storeu_si512(to, nearest(low, high));
            low -= load(to), high -= load(to + LANES);  // what rounding has left
        }
    }
}

// 16 outputs in tiles of pairs of inputs: (inputs / 32, 16 pairs, 16 outputs, 2).
void lay_out_outputs(const float* weight, int64_t inputs, uint16_t* to) {
    for (int64_t i = 0; i < inputs; i += DEPTH) {
        __m512i pairs[SIDE];
        for (int o = 0; o < SIDE; o++) {
            const float* from = weight + o * inputs + i;
            pairs[o] = nearest(load(from), load(from + LANES));
        }
        transpose(pairs);
        for (int pair = 0; pair < SIDE; pair++, to += DEPTH) _mm512_storeu_si512(to, pairs[pair]);
    }
}

// sums of 32 rows and 32 outputs, each laid out as above, the second 16 behind the first.
void multiply(const uint16_t* x, const uint16_t* weight, int64_t inputs, float (*sums)[PAIR]) {
    const uint16_t *x2 = x + PARTS * SIDE * inputs, *weight2 = weight + SIDE * inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < inputs; i += DEPTH, weight += PART, weight2 += PART) {
        _tile_loadd(6, weight, LINE);
        _tile_loadd(7, weight2, LINE);
        for (int part = 0; part < PARTS; part++, x += PART, x2 += PART) {
            _tile_loadd(4, x, LINE);
            _tile_loadd(5, x2, LINE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], PAIR * 4);
    _tile_stored(1, sums[0] + SIDE, PAIR * 4);
    _tile_stored(2, sums[SIDE], PAIR * 4);
    _tile_stored(3, sums[SIDE] + SIDE, PAIR * 4);
}

// This thread's share of the outputs of up to ROWS `rows`, which are laid out as `x`.
void wide_share(const Matrix& matrix, const uint16_t* x, int64_t rows, float* y, int64_t thread, int64_t threads) {
    static thread_local std::vector<uint16_t> own;
    alignas(64) float sums[PAIR][PAIR];
    const float* weight = static_cast<const float*>(matrix.weight);
    const int64_t inputs = matrix.inputs, pairs = matrix.outputs / PAIR;
    const int64_t end = pairs * (thread + 1) / threads * PAIR;
    own.resize(OUTPUTS * inputs);
    for (int64_t start = pairs * thread / threads * PAIR; start < end; start += OUTPUTS) {
        const int64_t outputs = std::min(OUTPUTS, end - start);
        for (int64_t o = 0; o < outputs; o += SIDE)
            lay_out_outputs(weight + (start + o) * inputs, inputs, own.data() + o * inputs);
        for (int64_t row = 0; row < rows; row += PAIR)
            for (int64_t o = 0; o < outputs; o += PAIR) {
                multiply(x + row * inputs * PARTS, own.data() + o * inputs, inputs, sums);
                for (int64_t r = 0; r < std::min<int64_t>(PAIR, rows - row); r++)
                    for (int64_t i = 0; i < PAIR; i += LANES) {
                        const int64_t at = start + o + i;
                        const Numbers sum = load(sums[r] + i) + (matrix.bias ? load(matrix.bias + at) : Numbers{});
                        std::memcpy(y + (row + r) * matrix.outputs + at, &sum, sizeof sum);
                    }
            }
    }
}

// Whether all of (rows, size) are bfloat16 in truth: most of what is not shows it in its first row.
bool are_bfloat16(const float* values, int64_t rows, int64_t size) {
    uint32_t lower = 0;
    for (int64_t row = 0; row < rows && !lower; row++)
        for (int64_t i = row * size; i < (row + 1) * size; i++) lower |= raw<uint32_t>(values + i) & 0xffff;
    return !lower;
}

}  // namespace
#endif

// Whether `kshipra_product` can take that matrix here.
extern "C" bool kshipra_is_wide(const Matrix* matrix) {
#ifdef MATRIX_UNIT
    return matrix->format == FLOAT32 && matrix->inputs % DEPTH == 0 && matrix->outputs % PAIR == 0 && matrix_unit() &&
           are_bfloat16(static_cast<const float*>(matrix->weight), matrix->outputs, matrix->inputs);
#else
    return false;
#endif
}

// y (R, outputs) = x (R, inputs) @ matrix + bias.
extern "C" void kshipra_product(const Matrix* matrix, const float* x, int64_t rows, float* y, int64_t threads) {
#ifdef MATRIX_UNIT
    static thread_local std::vector<uint16_t> kept;  // fresh memory would cost a page fault every 4 KiB
    kept.resize((std::min(rows, ROWS) + PAIR - 1) / PAIR * PAIR * matrix->inputs * PARTS);
    uint16_t* tiles = kept.data();  // rows behind the last are left as they are, and not taken
    for (int64_t row = 0; row < rows; row += ROWS, x += ROWS * matrix->inputs, y += ROWS * matrix->outputs) {
        const int64_t some = std::min(ROWS, rows - row);
#pragma omp parallel num_threads(threads)
        {
            const Tiles shapes;
#pragma omp for
            for (int64_t r = 0; r < some; r++) lay_out_row(x, r, matrix->inputs, tiles);
            wide_share(*matrix, tiles, some, y, omp_get_thread_num(), omp_get_num_threads());
        }
    }
#endif
}
