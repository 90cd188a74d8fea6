// Vectors of floats as wide as the registers of the processor that this is compiled for, and the two formats of tensors.
// Plain vector extensions of GCC (12 and later) and Clang: one source for every instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ingot {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

// As in memory: at any address, and as any type.
template <class To, class From>
inline To as(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class Vector>
inline Vector load(const void* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <class Vector>
inline void store(void* to, const Vector& vector) {
    std::memcpy(to, &vector, sizeof vector);
}

inline Floats all(float x) { return x - Floats{}; }

// A maximum that keeps the first number where one of them is NaN.
inline Floats larger(Floats a, Floats b) { return b > a ? b : a; }

inline float sum(Floats x) {
    float lanes[LANES];
    store(lanes, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

inline float largest(Floats x) {
    float lanes[LANES];
    store(lanes, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            if (lanes[i + width] > lanes[i]) lanes[i] = lanes[i + width];
    return lanes[0];
}

inline Floats nearest_whole(Floats x) {
    const Floats shift = all(12582912.0f);  // 1.5 * 2^23: a sum with it is rounded to a whole number
    return (x + shift) - shift;
}

// e^rest * 2^whole, for a rest of at most half of ln 2: by the power series, 5e-9 from what it is. Below 2^-126 it is that,
// and NaN stays NaN.
inline Floats power(Floats rest, Floats whole) {
    Floats y = all(1.0f / 5040);
    y = y * rest + 1.0f / 720;
    y = y * rest + 1.0f / 120;
    y = y * rest + 1.0f / 24;
    y = y * rest + 1.0f / 6;
    y = y * rest + 0.5f;
    y = y * rest + 1.0f;
    y = y * rest + 1.0f;
    const Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return y * as<Floats>(exponent);
}

inline Floats within(Floats x, float least, float most) {  // NaN stays NaN
    x = x < least ? all(least) : x;
    return x > most ? all(most) : x;
}

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

inline Floats power_of_two(Floats x) {
    x = within(x, -126.0f, 127.0f);
    const Floats whole = nearest_whole(x);
    return power((x - whole) * LN_2, whole);
}

inline Floats exponential(Floats x) {
    constexpr float HIGH = 0.693359375f, LOW = -2.12194440054690e-4f;  // products with the first are exact
    x = within(x, -87.0f, 88.0f);
    const Floats whole = nearest_whole(x * LOG2_E);
    return power((x - whole * HIGH) - whole * LOW, whole);
}

inline Floats hyperbolic_tangent(Floats x) { return 2.0f / (1.0f + exponential(-2.0f * x)) - 1.0f; }

// The formats: how a number lies in memory, and what it becomes when it is rounded there.

template <class Format, class Stored>
struct Some {  // at most LANES numbers
    static Floats widen_some(const Stored* from, int64_t count) {
        if (count >= LANES) return Format::widen(from);
        Stored padded[LANES] = {};
        std::memcpy(padded, from, count * sizeof *from);
        return Format::widen(padded);
    }
    static void narrow_some(Stored* to, Floats x, int64_t count) {
        if (count >= LANES) return Format::narrow(to, x);
        Stored padded[LANES];
        Format::narrow(padded, x);
        std::memcpy(to, padded, count * sizeof *to);
    }
};

struct Float32 : Some<Float32, float> {
    typedef float Stored;
    static float widen(Stored x) { return x; }
    static Stored narrow(float x) { return x; }
    static Floats widen(const Stored* from) { return load<Floats>(from); }
    static void narrow(Stored* to, Floats x) { store(to, x); }
    static Floats rounded(Floats x) { return x; }
};

struct BFloat16 : Some<BFloat16, uint16_t> {
    typedef uint16_t Stored;
    static float widen(Stored x) { return as<float>(static_cast<uint32_t>(x) << 16); }
    static Stored narrow(float x) {  // to the nearest, of two to the even one
        const uint32_t bits = as<uint32_t>(x);
        return x != x ? 0x7fc0 : static_cast<Stored>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static Floats widen(const Stored* from) {
        return as<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
    }
    static Words high_halves(Floats x) {
        const Words bits = as<Words>(x);
        const Words nearest = bits + 0x7fff + (bits >> 16 & 1);
        return (x != x ? Words{} + 0x7fc00000u : nearest) >> 16;
    }
    static void narrow(Stored* to, Floats x) { store(to, __builtin_convertvector(high_halves(x), Halves)); }
    static Floats rounded(Floats x) { return as<Floats>(high_halves(x) << 16); }
};

}  // namespace ingot
