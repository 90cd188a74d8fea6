// Products of matrices, a tile of sums at a time: what attention and linear layers are made of.
#pragma once

#include <utility>

#include "numbers.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace ingot {

#if defined(__AVX512F__)
constexpr int ROWS = 6, VECTORS = 4;  // of sums that the registers hold beside what is multiplied
#else
constexpr int ROWS = 4, VECTORS = 2;
#endif
constexpr int COLUMNS = VECTORS * LANES;
constexpr int AHEAD_BYTES = 8192;  // of a matrix that is read once from end to end

// A step of a sum is the product of one number or of two at once, in 32 bits: all sums are in float32.

template <class Format>
struct Singles : Format {
    typedef float Step;
    typedef float Number;
    static constexpr int NUMBERS = 1;
    static Floats add(Floats sums, Step a, Floats b) { return sums + a * b; }
    static Floats steps(const typename Format::Stored* from) { return Format::widen(from); }
    static Floats beside(const typename Format::Stored* const* rows, int at) { return Format::widen(rows[0] + at); }
    static void narrow(Number* to, Floats x) { store(to, x); }
};

#if defined(__AVX512BF16__)
struct Pairs : BFloat16 {
    typedef uint32_t Step;
    typedef uint16_t Number;
    static constexpr int NUMBERS = 2;
    static Floats add(Floats sums, Step a, Floats b) {
        return as<Floats>(_mm512_dpbf16_ps(as<__m512>(sums), as<__m512bh>(Words{} + a), as<__m512bh>(b)));
    }
    static Floats steps(const uint16_t* from) { return load<Floats>(from); }
    static Floats beside(const uint16_t* const* rows, int at) {
        const Words first = __builtin_convertvector(load<Halves>(rows[0] + at), Words);
        const Words second = __builtin_convertvector(load<Halves>(rows[1] + at), Words);
        return as<Floats>(first | second << 16);
    }
    using BFloat16::narrow;
};
typedef Pairs OfBFloat16;
#else
typedef Singles<BFloat16> OfBFloat16;
#endif

template <class Math, int Count>
struct Tile {
    Floats sums[Count][VECTORS] = {};

    // sums[r][c] += a[r][k] * b[k][c] for every step k. Where `Once`, b is not in any cache yet.
    template <bool Once = false>
    void add(const typename Math::Step* a, int64_t a_step, const float* b, int64_t b_step, int64_t steps) {
        for (int64_t k = 0; k < steps; k++, b += b_step) {
            Floats columns[VECTORS];
            for (int v = 0; v < VECTORS; v++) columns[v] = load<Floats>(b + v * LANES);
            if constexpr (Once)
                for (int v = 0; v < VECTORS; v++) __builtin_prefetch(b + AHEAD_BYTES / sizeof *b + v * LANES);
            for (int r = 0; r < Count; r++)
                for (int v = 0; v < VECTORS; v++) sums[r][v] = Math::add(sums[r][v], a[r * a_step + k], columns[v]);
        }
    }

    template <class Op>
    void each(Op op) {
        for (int r = 0; r < Count; r++)
            for (int v = 0; v < VECTORS; v++) op(r, v * LANES, sums[r][v]);
    }
};

// Rows become columns: LANES rows of as many numbers of 32 bits, in halves, quarters and so on.
template <int STEP, std::size_t... LANE>
inline void exchange(Floats& a, Floats& b, std::index_sequence<LANE...>) {
    const Floats first = __builtin_shufflevector(a, b, (LANE & STEP ? LANES + LANE - STEP : LANE)...);
    const Floats second = __builtin_shufflevector(a, b, (LANE & STEP ? LANES + LANE : LANE + STEP)...);
    a = first, b = second;
}

template <int STEP = LANES / 2>
inline void transpose(Floats* rows) {
    if constexpr (STEP > 0) {
        for (int i = 0; i < LANES; i++)
            if (!(i & STEP)) exchange<STEP>(rows[i], rows[i + STEP], std::make_index_sequence<LANES>());
        transpose<STEP / 2>(rows);
    }
}

}  // namespace ingot
