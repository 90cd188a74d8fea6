// Ops over rows: RMS norm, gated activation, and heads on their way to attention. Each has the arithmetic, and where two
// roundings show the roundings, of its op's reference.py.
#include "numbers.h"
#include "workers.h"

namespace ingot {
namespace {

constexpr int64_t FEW_NUMBERS = 1 << 15;  // some microseconds of work, which it takes to wake a thread

// Through `size` numbers, LANES at a time, and then what is left.
template <class Op>
inline void over(int64_t size, Op op) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) op(i, LANES);
    if (i < size) op(i, size - i);
}

template <class Format>
inline void normed(typename Format::Stored* to, const typename Format::Stored* from, const typename Format::Stored* weight,
                   int64_t size, float eps, float offset) {
    Floats squares = {};
    over(size, [&](int64_t i, int64_t count) {
        const Floats x = Format::widen_some(from + i, count);
        squares += x * x;
    });
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sum(squares)) / size + eps));
    over(size, [&](int64_t i, int64_t count) {
        const Floats x = Format::widen_some(from + i, count) * scale, w = Format::widen_some(weight + i, count);
        Format::narrow_some(to + i, offset != 0 ? x * (w + offset) : Format::rounded(x) * w, count);
    });
}

template <class Format>
void rms_norm(void* out, const void* in, const void* weight, void* residual, int64_t begin, int64_t end, int64_t size,
              float eps, float offset) {
    typedef typename Format::Stored Stored;
    for (int64_t row = begin; row < end; row++) {
        const Stored* from = static_cast<const Stored*>(in) + row * size;
        if (residual) {
            Stored* sums = static_cast<Stored*>(residual) + row * size;
            over(size, [&](int64_t i, int64_t count) {
                Format::narrow_some(sums + i, Format::widen_some(sums + i, count) + Format::widen_some(from + i, count), count);
            });
            from = sums;
        }
        normed<Format>(static_cast<Stored*>(out) + row * size, from, static_cast<const Stored*>(weight), size, eps, offset);
    }
}

enum class Activation : int64_t { silu, gelu_tanh };

inline Floats activated(Floats x, Activation activation) {
    Floats steep = x;
    if (activation == Activation::gelu_tanh) steep = 1.5957691216f * (x + 0.044715f * x * x * x);  // 2 * sqrt(2 / pi)
    return x / (1.0f + exponential(-steep));
}

template <class Format>
void gated_activation(void* out, const void* in, int64_t begin, int64_t end, int64_t size, Activation activation,
                      float limit) {
    typedef typename Format::Stored Stored;
    for (int64_t row = begin; row < end; row++) {
        const Stored *gates = static_cast<const Stored*>(in) + row * 2 * size, *ups = gates + size;
        Stored* to = static_cast<Stored*>(out) + row * size;
        over(size, [&](int64_t i, int64_t count) {
            Floats gate = Format::widen_some(gates + i, count), up = Format::widen_some(ups + i, count);
            gate = gate > limit ? all(limit) : gate;
            up = up > limit ? all(limit) : up;
            up = up < -limit ? all(-limit) : up;
            Format::narrow_some(to + i, Format::rounded(activated(gate, activation)) * up, count);
        });
    }
}

// In place; `table` has the token's cosines, then its sines.
template <class Format>
inline void turn(typename Format::Stored* head, const typename Format::Stored* table, int64_t half, bool interleaved) {
    if (interleaved) {
        for (int64_t i = 0; i < half; i++) {
            const float a = Format::widen(head[2 * i]), b = Format::widen(head[2 * i + 1]);
            const float cosine = Format::widen(table[i]), sine = Format::widen(table[half + i]);
            head[2 * i] = Format::narrow(a * cosine - b * sine);
            head[2 * i + 1] = Format::narrow(b * cosine + a * sine);
        }
        return;
    }
    over(half, [&](int64_t i, int64_t count) {
        const Floats a = Format::widen_some(head + i, count), b = Format::widen_some(head + half + i, count);
        const Floats cosine = Format::widen_some(table + i, count), sine = Format::widen_some(table + half + i, count);
        Format::narrow_some(head + i, a * cosine - b * sine, count);
        Format::narrow_some(head + half + i, b * cosine + a * sine, count);
    });
}

template <class Format>
void rotary_cache(void* query, void* key, const void* value, int64_t query_step, int64_t key_step, int64_t value_step,
                  const int64_t* positions, const void* cos_sin, int64_t rotary, void* key_cache, void* value_cache,
                  const int64_t* slots, int64_t begin, int64_t end, int64_t heads, int64_t kv_heads, int64_t head_dim,
                  const void* query_norm, const void* key_norm, float eps, float offset, bool interleaved) {
    typedef typename Format::Stored Stored;
    const int64_t kept = kv_heads * head_dim;
    for (int64_t token = begin; token < end; token++) {
        const Stored* table = static_cast<const Stored*>(cos_sin) + positions[token] * rotary;
        Stored* of_query = static_cast<Stored*>(query) + token * query_step;
        Stored* of_key = static_cast<Stored*>(key) + token * key_step;
        for (int64_t head = 0; head < heads + kv_heads; head++) {
            Stored* at = head < heads ? of_query + head * head_dim : of_key + (head - heads) * head_dim;
            if (query_norm) {
                const void* weight = head < heads ? query_norm : key_norm;
                normed<Format>(at, at, static_cast<const Stored*>(weight), head_dim, eps, offset);
            }
            turn<Format>(at, table, rotary / 2, interleaved);
        }
        if (slots[token] < 0) continue;
        std::memcpy(static_cast<Stored*>(key_cache) + slots[token] * kept, of_key, kept * sizeof(Stored));
        std::memcpy(static_cast<Stored*>(value_cache) + slots[token] * kept,
                    static_cast<const Stored*>(value) + token * value_step, kept * sizeof(Stored));
    }
}

}  // namespace
}  // namespace ingot

using namespace ingot;

extern "C" {

void ingot_rms_norm(int64_t bfloat16, void* out, const void* in, const void* weight, void* residual, int64_t rows,
                    int64_t size, float eps, float offset, int64_t threads) {
    share_runs(rows, size, FEW_NUMBERS, static_cast<int>(threads), [=](int64_t begin, int64_t end) {
        (bfloat16 ? rms_norm<BFloat16> : rms_norm<Float32>)(out, in, weight, residual, begin, end, size, eps, offset);
    });
}

void ingot_gated_activation(int64_t bfloat16, void* out, const void* in, int64_t rows, int64_t size, int64_t activation,
                            float limit, int64_t threads) {
    share_runs(rows, 2 * size, FEW_NUMBERS, static_cast<int>(threads), [=](int64_t begin, int64_t end) {
        (bfloat16 ? gated_activation<BFloat16> : gated_activation<Float32>)(out, in, begin, end, size,
                                                                            static_cast<Activation>(activation), limit);
    });
}

void ingot_rotary_cache(int64_t bfloat16, void* query, void* key, const void* value, int64_t query_step, int64_t key_step,
                        int64_t value_step, const int64_t* positions, const void* cos_sin, int64_t rotary,
                        void* key_cache, void* value_cache, const int64_t* slots, int64_t tokens, int64_t heads,
                        int64_t kv_heads, int64_t head_dim, const void* query_norm, const void* key_norm, float eps,
                        float offset, int64_t interleaved, int64_t threads) {
    const int64_t size = (heads + 2 * kv_heads) * head_dim;
    share_runs(tokens, size, FEW_NUMBERS, static_cast<int>(threads), [=](int64_t begin, int64_t end) {
        (bfloat16 ? rotary_cache<BFloat16> : rotary_cache<Float32>)(
            query, key, value, query_step, key_step, value_step, positions, cos_sin, rotary, key_cache, value_cache,
            slots, begin, end, heads, kv_heads, head_dim, query_norm, key_norm, eps, offset, interleaved);
    });
}
}
