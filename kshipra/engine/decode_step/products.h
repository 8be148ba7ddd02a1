// Products of a few rows with a matrix, bound by how fast the matrix is read: y (B, outputs) = x (B, inputs) @ W.
//
// Weights are (outputs, inputs) in float32, bfloat16 or int8 with a scale an output; what is computed is float32, or
// as good: inputs that meet int8 weights as integers are rounded to 16 bits block by block (two bytes on a matrix unit),
// and inputs that meet bfloat16 there go in as two bfloat16, the number and what rounding left of it.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#define MATRIX_UNIT
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum Format : int64_t { FLOAT32, BFLOAT16, INT8 };

struct Matrix {
    const void* weight;  // (outputs, inputs)
    const float* scale;  // (outputs), for INT8
    const float* bias;   // (outputs), or null
    int64_t inputs, outputs;
    Format format;
};

namespace {

constexpr int TILE = 4;       // outputs that are computed together, so that sums do not wait for each other
constexpr int GROUP = 4;      // rows that take a weight while it is in a register

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
#ifdef __AVX512F__  // what the compiler makes of the two below takes three times as many instructions
Numbers load(const int8_t* from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(raw<__m128i>(from))); }
Numbers load(const uint16_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw<__m256i>(from)), 16));
}
#else
Numbers load(const int8_t* from) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    return __builtin_convertvector(raw<Bytes>(from), Numbers);
}
Numbers load(const uint16_t* from) {  // bfloat16 is the upper half of a float32
    typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
    return reinterpret_cast<Numbers>(__builtin_convertvector(raw<Halves>(from), Bits) << 16);
}
#endif
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

#ifdef MATRIX_UNIT
// Advanced Matrix Extensions: 16 outputs x 64 bytes of weights times 64 bytes of inputs x 16 rows, an instruction.
constexpr int SIDE = 16, LINE = 64, TILE_BYTES = SIDE * LINE;
constexpr int DEPTH = LINE / 2;  // inputs of a tile in bfloat16; in int8 there are LINE

struct alignas(64) TileShapes {  // as the processor wants it
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
    TileShapes() {
        for (int tile = 0; tile < 8; tile++) bytes[tile] = LINE, rows[tile] = SIDE;
    }
};

bool matrix_unit() {  // the kernel hands it out on request, once a process
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return granted;
}

__m512i every_line() {  // one number of each of 16 lines
    return _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 4);
}

// While it lives, its thread has tiles of 16 rows and 64 bytes.
struct Tiles {
    Tiles() {
        const TileShapes shapes;
        if (matrix_unit()) _tile_loadconfig(&shapes);
    }
    ~Tiles() {
        if (matrix_unit()) _tile_release();
    }
};

// sums[o][r] of 32 outputs and up to 16 rows; `packed` holds the rows as Input::pack lays them out.
void tile_products(const uint16_t* weight, const uint16_t* packed, int64_t size, float (*sums)[SIDE]) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < size; i += DEPTH, packed += 2 * SIDE * DEPTH) {
        for (int o = 2 * SIDE; o < 4 * SIDE; o++) __builtin_prefetch(weight + o * size + i);  // those after these
        _tile_loadd(2, weight + i, size * 2);
        _tile_loadd(3, weight + SIDE * size + i, size * 2);
        _tile_loadd(4, packed, LINE);
        _tile_loadd(5, packed + SIDE * DEPTH, LINE);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 3, 4);
        _tile_dpbf16ps(0, 2, 5);
        _tile_dpbf16ps(1, 3, 5);
    }
    _tile_stored(0, sums, LINE);
    _tile_stored(1, sums + SIDE, LINE);
}

// The same in integers: `bytes` and `scales` hold the rows as Input::split lays them out.
void tile_products(const int8_t* weight, const uint8_t* bytes, const float* scales, int64_t size, int64_t block,
                   float (*sums)[SIDE]) {
    alignas(64) int32_t high[2 * SIDE][SIDE], low[2 * SIDE][SIDE];
    std::fill_n(sums[0], 2 * SIDE * SIDE, 0.0f);
    for (int64_t start = 0; start < size; start += block, scales += SIDE) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t i = start; i < start + block; i += LINE, bytes += 2 * TILE_BYTES) {
            for (int o = 2 * SIDE; o < 4 * SIDE; o++) __builtin_prefetch(weight + o * size + i);
            _tile_loadd(4, weight + i, size);
            _tile_loadd(5, weight + SIDE * size + i, size);
            _tile_loadd(6, bytes, LINE);
            _tile_loadd(7, bytes + TILE_BYTES, LINE);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 5, 6);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 5, 7);
        }
        _tile_stored(0, high, LINE);
        _tile_stored(1, high + SIDE, LINE);
        _tile_stored(2, low, LINE);
        _tile_stored(3, low + SIDE, LINE);
        const __m512 scale = _mm512_loadu_ps(scales);
        for (int o = 0; o < 2 * SIDE; o++) {
            const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(raw<__m512i>(high[o]), 8), raw<__m512i>(low[o]));
            _mm512_storeu_ps(sums[o], _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(sums[o])));
        }
    }
}
#else
struct Tiles {
    Tiles() {}
};
#endif

// A product's input: (B, inputs) in float32, and as the kernel that suits it wants it.
struct Input {
    const float* values;
    int64_t rows, size, block, blocks;
    bool tiled;
    std::vector<int16_t> rounded;
    std::vector<float> scales;     // (B, blocks) of `rounded`
    std::vector<uint16_t> packed;  // (B / 16, inputs / 32, number and rest, 16 pairs of inputs, 16 rows, 2)
    std::vector<uint8_t> bytes;    // (B / 16, inputs / 64, upper and lower byte, 16 fours of inputs, 16 rows, 4)
    std::vector<float> tile_scales;  // (B / 16, blocks, 16 rows) of `bytes`

    void set(const float* from, int64_t row_count, int64_t inputs, Format format) {
        values = from, rows = row_count, size = inputs, block = 0, tiled = false;
#ifdef MATRIX_UNIT
        tiled = format == BFLOAT16 && rows > GROUP && size % DEPTH == 0 && matrix_unit();
        if (tiled) return pack();
#endif
#ifdef __AVX512VNNI__
        for (int64_t fits : {192, 128, 64})
            if (format == INT8 && !block && size % fits == 0) block = fits;
        if (block) round();
#endif
#ifdef MATRIX_UNIT
        tiled = block && rows > 1 && matrix_unit();
        if (tiled) split();
#endif
    }

#ifdef MATRIX_UNIT
    void pack() {
        const int64_t groups = (rows + SIDE - 1) / SIDE, depths = size / DEPTH;
        packed.assign(groups * depths * 2 * SIDE * DEPTH, 0);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t d = 0; d < depths; d++) {
                const float* from = values + row * size + d * DEPTH;
                const __m512 low = load(from), high = load(from + LANES);
                const __m512i number = (__m512i)_mm512_cvtne2ps_pbh(high, low);  // 16 pairs of inputs
                uint16_t halves[DEPTH];
                std::memcpy(halves, &number, sizeof number);
                const __m512i rest = (__m512i)_mm512_cvtne2ps_pbh(high - load(halves + LANES), low - load(halves));
                uint16_t* to = packed.data() + (row / SIDE * depths + d) * 2 * SIDE * DEPTH + row % SIDE * 2;
                _mm512_i32scatter_epi32(to, every_line(), number, 4);
                _mm512_i32scatter_epi32(to + SIDE * DEPTH, every_line(), rest, 4);
            }
    }
#endif

#ifdef MATRIX_UNIT
    // Each of `rounded` is 256 * upper, signed, + lower, not signed.
    void split() {
        const int64_t groups = (rows + SIDE - 1) / SIDE, depths = size / LINE;
        bytes.resize(groups * depths * 2 * TILE_BYTES), tile_scales.resize(groups * blocks * SIDE);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t b = 0; b < blocks; b++)
                tile_scales[(row / SIDE * blocks + b) * SIDE + row % SIDE] = scales[row * blocks + b];
            for (int64_t d = 0; d < depths; d++) {
                const int16_t* from = rounded.data() + row * size + d * LINE;
                const __m512i first = raw<__m512i>(from), second = raw<__m512i>(from + LINE / 2);
                const __m256i upper[] = {_mm512_cvtepi16_epi8(_mm512_srai_epi16(first, 8)),
                                         _mm512_cvtepi16_epi8(_mm512_srai_epi16(second, 8))};
                const __m256i lower[] = {_mm512_cvtepi16_epi8(first), _mm512_cvtepi16_epi8(second)};
                uint8_t* to = bytes.data() + (row / SIDE * depths + d) * 2 * TILE_BYTES + row % SIDE * 4;
                _mm512_i32scatter_epi32(to, every_line(), raw<__m512i>(upper), 4);
                _mm512_i32scatter_epi32(to + TILE_BYTES, every_line(), raw<__m512i>(lower), 4);
            }
        }
    }
#endif

#ifdef __AVX512VNNI__
    void round() {
        blocks = size / block;
        rounded.resize(rows * size), scales.resize(rows * blocks);
        for (int64_t start = 0; start < rows * size; start += block) {
            float largest = 1e-30f;
            for (int64_t i = start; i < start + block; i++) largest = std::max(largest, std::fabs(values[i]));
            scales[start / block] = largest / 32767;
            for (int64_t i = start; i < start + block; i += LANES) {
                const __m512 steps = reinterpret_cast<__m512>(load(values + i)) * (32767 / largest);
                const __m256i whole = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(steps));
                std::memcpy(rounded.data() + i, &whole, sizeof whole);
            }
        }
    }
#endif
};

// sums[r][t] = dot(weight row t, x row r), both of `size` numbers.
template <int R, int T, class Weight>
void dots(const Weight* weight, const float* x, int64_t size, float sums[][TILE]) {
    Numbers total[R][T];
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) total[r][t] = Numbers{};
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
    const int64_t size = input.size, blocks = input.blocks, block = input.block;
    const int16_t* x = input.rounded.data() + row * size;
    const float* scales = input.scales.data() + row * blocks;
    __m512 total[R][T];
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) total[r][t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
        __m512i sum[R][T];
        for (int r = 0; r < R; r++)
            for (int t = 0; t < T; t++) sum[r][t] = _mm512_setzero_si512();
        for (int64_t i = b * block; i < (b + 1) * block; i += 32) {
            __m512i w[T];
            for (int t = 0; t < T; t++) w[t] = _mm512_cvtepi8_epi16(raw<__m256i>(weight + t * size + i));
            for (int r = 0; r < R; r++) {
                const __m512i a = raw<__m512i>(x + r * size + i);
                for (int t = 0; t < T; t++) sum[r][t] = _mm512_dpwssd_epi32(sum[r][t], w[t], a);
            }
        }
        for (int r = 0; r < R; r++)
            for (int t = 0; t < T; t++) total[r][t] += _mm512_cvtepi32_ps(sum[r][t]) * scales[r * blocks + b];
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

#ifdef MATRIX_UNIT
void tile_rows(const Matrix& matrix, const Input& x, int64_t output, float* y) {
    alignas(64) float sums[2 * SIDE][SIDE];
    const int64_t start = output * x.size;
    for (int64_t row = 0; row < x.rows; row += SIDE) {
        const int64_t group = row / SIDE, before = group * 2 * SIDE * x.size;  // inputs of earlier groups, twice
        if (matrix.format == INT8)
            tile_products(static_cast<const int8_t*>(matrix.weight) + start, x.bytes.data() + before,
                          x.tile_scales.data() + group * x.blocks * SIDE, x.size, x.block, sums);
        else
            tile_products(static_cast<const uint16_t*>(matrix.weight) + start, x.packed.data() + before, x.size, sums);
        for (int64_t r = row; r < std::min(row + SIDE, x.rows); r++)
            for (int o = 0; o < 2 * SIDE; o += LANES) {
                float* to = y + r * matrix.outputs + output + o;
                const Numbers column = _mm512_i32gather_ps(every_line(), &sums[o][r - row], 4);
                const Numbers scale = matrix.format == INT8 ? load(matrix.scale + output + o) : Numbers{} + 1;
                const Numbers sum = load(to) + column * scale;
                std::memcpy(to, &sum, sizeof sum);
            }
    }
}
#endif

// y (B, outputs) = x @ matrix + bias for the outputs from `first` to `last`, added to what y has or in its place.
void product(const Matrix& matrix, const Input& x, int64_t first, int64_t last, float* y, bool add) {
    const int64_t outputs = matrix.outputs;
    for (int64_t row = 0; row < x.rows; row++)
        for (int64_t o = first; o < last; o++)
            y[row * outputs + o] = (add ? y[row * outputs + o] : 0.0f) + (matrix.bias ? matrix.bias[o] : 0.0f);
#ifdef MATRIX_UNIT
    for (; x.tiled && first + 2 * SIDE <= last; first += 2 * SIDE) tile_rows(matrix, x, first, y);
#endif
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

}  // namespace
