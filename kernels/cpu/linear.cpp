// Linear layers in bfloat16, for processors that multiply pairs of it (AVX512_BF16).
//
// A weight [outputs, inputs] is packed once: panels of COLUMNS outputs, in which each pair of inputs has its numbers of all
// these outputs side by side. So a product reads it from end to end, once for every ROWS tokens, and a token's sums are
// added up in the same order however many there are beside it.
#include "products.h"
#include "workers.h"

#if defined(__AVX512BF16__)

namespace ingot {
namespace {

constexpr int64_t FEW_NUMBERS = 1 << 16;  // of a part's weights: as much as is worth a thread's while

// From `weight` to panel `at`; rows beyond the last are zeros.
void pack_panel(float* panel, const uint16_t* weight, int64_t at, int64_t outputs, int64_t inputs) {
    const int64_t steps = inputs / 2;
    for (int64_t row = 0; row < COLUMNS; row += LANES)
        for (int64_t step = 0; step < steps; step += LANES) {
            const int64_t whole = steps - step < LANES ? steps - step : LANES;
            Floats block[LANES] = {};
            for (int i = 0; i < LANES; i++)
                if (at * COLUMNS + row + i < outputs)
                    std::memcpy(&block[i], weight + (at * COLUMNS + row + i) * inputs + 2 * step, 4 * whole);
            transpose(block);
            for (int64_t i = 0; i < whole; i++) store(panel + (step + i) * COLUMNS + row, block[i]);
        }
}

struct Product {
    const uint16_t* in;
    const float* panels;
    const uint16_t* bias;
    void* out;
    bool wide;  // `out` is in float32 and takes the sums as they are
    int64_t in_step, tokens, outputs, inputs;

    template <int Count>
    void rows(int64_t token, int64_t panel) const {
        Tile<Pairs, Count> tile;
        tile.template add<Count <= 2>(reinterpret_cast<const uint32_t*>(in + token * in_step), in_step / 2,
                                      panels + panel * COLUMNS * (inputs / 2), COLUMNS, inputs / 2);
        const int64_t first = panel * COLUMNS, left = outputs - first;
        tile.each([&](int row, int column, Floats& sums) {
            if (column >= left) return;
            if (bias) sums += BFloat16::widen_some(bias + first + column, left - column);
            const int64_t at = (token + row) * outputs + first + column;
            if (wide)
                Float32::narrow_some(static_cast<float*>(out) + at, sums, left - column);
            else
                BFloat16::narrow_some(static_cast<uint16_t*>(out) + at, sums, left - column);
        });
    }

    template <int Count = ROWS>
    void last_rows(int64_t token, int64_t panel) const {
        if constexpr (Count > 0) {
            if (tokens - token == Count)
                rows<Count>(token, panel);
            else
                last_rows<Count - 1>(token, panel);
        }
    }

    void operator()(int64_t panel) const {
        int64_t token = 0;
        for (; tokens - token >= ROWS; token += ROWS) rows<ROWS>(token, panel);
        last_rows(token, panel);
    }
};

int64_t panels_of(int64_t outputs) { return (outputs + COLUMNS - 1) / COLUMNS; }

}  // namespace
}  // namespace ingot

using namespace ingot;

extern "C" {

// `packed` has room for whole panels.
void ingot_pack(void* packed, const void* weight, int64_t outputs, int64_t inputs, int64_t threads) {
    share(panels_of(outputs), static_cast<int>(threads), [=](int64_t at) {
        pack_panel(static_cast<float*>(packed) + at * COLUMNS * (inputs / 2), static_cast<const uint16_t*>(weight), at,
                   outputs, inputs);
    });
}

// `in` [tokens, inputs], `in_step` numbers between two of them; `out` [tokens, outputs], in float32 if `wide`; `bias`
// [outputs] or null.
void ingot_linear(const void* in, const void* packed, const void* bias, void* out, int64_t wide, int64_t in_step,
                  int64_t tokens, int64_t outputs, int64_t inputs, int64_t threads) {
    const Product product = {static_cast<const uint16_t*>(in),   static_cast<const float*>(packed),
                             static_cast<const uint16_t*>(bias), out, wide != 0, in_step, tokens, outputs, inputs};
    share_runs(panels_of(outputs), COLUMNS * inputs, FEW_NUMBERS, static_cast<int>(threads), [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; panel++) product(panel);
    });
}
}

#endif
