// Attention over pages: softmax(q k^T) v by blocks of keys, with a running maximum and sum (Milakov and Gimelshein, 2018;
// Dao et al., 2022). Nothing is as large as queries times keys.
//
// A row is one head of one query token. Rows of heads that share keys are taken together, and what a block of keys adds to
// a row does not depend on the rows beside it: a token's result is the same, bit by bit, alone and in any batch, and
// whichever chunk of its prompt it came in. Only where a window's tables begin later do the blocks of keys begin elsewhere,
// and their sums are rounded otherwise.
//
// Keys and values are first brought from their pages into the order in which the products read them. With AVX512_BF16 the
// products multiply pairs of bfloat16 and add them up in float32; the weights of the values are rounded for that. Anywhere
// else, and of float32, all is in float32.
#include <memory>
#include <vector>

#include "products.h"
#include "workers.h"

namespace ingot {
namespace {

constexpr int KEYS = 64;  // of a block
constexpr int CHUNK = 64;  // query tokens that go through a block together, while it is in the cache
constexpr int MOST_DIMENSIONS = 256;
constexpr float NOWHERE = -1e30f;  // a maximum before any key

struct Call {
    const void *query, *keys, *values;
    void* out;
    int64_t query_step;                            // numbers between tokens
    int64_t block_step, token_step, head_step;     // of both caches
    const int32_t *starts, *lengths, *tables;      // of each sequence: first query token, context, blocks
    int64_t table_step, sequences, block_size;
    int64_t heads, kv_heads, head_dim;
    float scale;
    int64_t window;      // tokens that a token sees, itself included; 0: all
    const float* sinks;  // of each head, or null
    float soft_cap;      // 0: none
    int64_t threads;
};

// Room for one chunk of one key head.
template <class Format, class Math>
struct Room {
    typedef typename Math::Step Step;

    Room(int rows, int dimensions)
        : width((dimensions + COLUMNS - 1) / COLUMNS * COLUMNS),
          steps(dimensions / Math::NUMBERS),
          queries(new Step[rows * steps]),
          sums(new float[rows * width]()),
          maxima(new float[rows]),
          totals(new float[rows]),
          keys(new float[steps * KEYS]),
          values(new float[KEYS / Math::NUMBERS * width]()) {}

    const int width, steps;  // of a row of sums: whole tiles; of a product of queries and keys
    std::unique_ptr<Step[]> queries;
    std::unique_ptr<float[]> sums, maxima, totals;
    std::unique_ptr<float[]> keys;    // [steps][KEYS]
    std::unique_ptr<float[]> values;  // [KEYS / NUMBERS][width]
};

template <class Format, class Math>
void gather(const Room<Format, Math>& room, const typename Format::Stored* const* keys,
            const typename Format::Stored* const* values, int dimensions) {
    for (int key = 0; key < KEYS; key += LANES)
        for (int step = 0; step < room.steps; step += LANES) {
            Floats rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = Math::steps(keys[key + i] + step * Math::NUMBERS);
            transpose(rows);
            for (int i = 0; i < LANES; i++) store(&room.keys[(step + i) * KEYS + key], rows[i]);
        }
    for (int key = 0; key < KEYS; key += Math::NUMBERS)
        for (int i = 0; i < dimensions; i += LANES)
            store(&room.values[key / Math::NUMBERS * room.width + i], Math::beside(values + key, i));
}

// The scores of a row become its weights. Keys from `first` on are visible, up to `last`, both counted in this block.
// Returns what the row's sums are to be multiplied by.
inline float weigh(float* scores, float& maximum, float& total, int64_t first, int64_t last, float scale, float soft_cap) {
    Floats most = all(maximum);
    for (int i = 0; i < KEYS; i += LANES) {
        Floats x = load<Floats>(scores + i);
        x = soft_cap != 0 ? soft_cap * hyperbolic_tangent(x * (scale / soft_cap)) * LOG2_E : x * (scale * LOG2_E);
        if (first > 0 || last < KEYS - 1)
            for (int lane = 0; lane < LANES; lane++)
                if (i + lane < first || i + lane > last) x[lane] = -INFINITY;
        store(scores + i, x);
        most = larger(most, x);
    }
    const float before = maximum;
    maximum = largest(most);
    Floats weights = {};
    for (int i = 0; i < KEYS; i += LANES) {
        const Floats x = load<Floats>(scores + i);
        const Floats weight = x == all(-INFINITY) ? Floats{} : power_of_two(x - maximum);
        store(scores + i, weight);
        weights += weight;
    }
    const float kept = before == maximum ? 1.0f : power_of_two(all(before - maximum))[0];
    total = total * kept + sum(weights);
    return kept;
}

// What a block adds to the sums of some rows.
template <class Math, int Count = ROWS>
inline void add_rows(int count, float* sums, int64_t sums_step, const typename Math::Step* a, int64_t a_step, const float* b,
                     int64_t b_step, int steps) {
    if constexpr (Count > 0) {
        if (count < Count) return add_rows<Math, Count - 1>(count, sums, sums_step, a, a_step, b, b_step, steps);
        Tile<Math, Count> tile;
        tile.each([&](int row, int column, Floats& held) { held = load<Floats>(sums + row * sums_step + column); });
        tile.add(a, a_step, b, b_step, steps);
        tile.each([&](int row, int column, Floats& held) { store(sums + row * sums_step + column, held); });
    }
}

template <class Format, class Math>
void attend(const Call& call, int64_t sequence, int64_t kv_head, int64_t chunk) {
    typedef typename Format::Stored Stored;
    typedef typename Math::Step Step;
    static const Stored nothing[MOST_DIMENSIONS] = {};
    const int dimensions = static_cast<int>(call.head_dim), group = static_cast<int>(call.heads / call.kv_heads);
    const int64_t begin = call.starts[sequence] + chunk * CHUNK, end = call.starts[sequence + 1];
    const int64_t tokens = end - begin < CHUNK ? end - begin : CHUNK, length = call.lengths[sequence];
    const int64_t position = length - (end - begin);  // of the chunk's first token
    const int rows = static_cast<int>(tokens) * group;
    const int64_t head = kv_head * group;

    Room<Format, Math> room(rows, dimensions);
    for (int row = 0; row < rows; row++) {
        const Stored* from = static_cast<const Stored*>(call.query) + (begin + row / group) * call.query_step +
                             (head + row % group) * dimensions;
        for (int step = 0; step < room.steps; step += LANES)
            store(&room.queries[row * room.steps + step], Math::steps(from + step * Math::NUMBERS));
        room.maxima[row] = call.sinks ? call.sinks[head + row % group] * LOG2_E : NOWHERE;
        room.totals[row] = call.sinks ? 1.0f : 0.0f;
    }

    const int64_t oldest = call.window && position >= call.window ? position - call.window + 1 : 0;
    const int32_t* table = call.tables + sequence * call.table_step;
    for (int64_t block = oldest / KEYS * KEYS; block < position + tokens; block += KEYS) {
        const Stored *keys[KEYS], *values[KEYS];
        for (int key = 0; key < KEYS; key++) {
            const int64_t at = block + key;
            const bool known = at >= oldest && at < length;
            const int64_t offset = !known ? 0
                                          : table[at / call.block_size] * call.block_step +
                                                at % call.block_size * call.token_step + kv_head * call.head_step;
            keys[key] = known ? static_cast<const Stored*>(call.keys) + offset : nothing;
            values[key] = known ? static_cast<const Stored*>(call.values) + offset : nothing;
        }
        gather<Format, Math>(room, keys, values, dimensions);
        for (int row = 0; row < rows; row += ROWS) {
            const int count = rows - row < ROWS ? rows - row : ROWS;
            if (position + (row + count - 1) / group < block) continue;  // all of these come before the block
            float scores[ROWS][KEYS] = {};
            Step weights[ROWS][KEYS / Math::NUMBERS];
            for (int column = 0; column < KEYS; column += COLUMNS)
                add_rows<Math>(count, &scores[0][column], KEYS, &room.queries[row * room.steps], room.steps,
                               &room.keys[column], KEYS, room.steps);
            for (int i = 0; i < count; i++) {
                const int64_t own = position + (row + i) / group;
                const int64_t first = call.window ? own - call.window + 1 - block : 0;
                float* sums = &room.sums[(row + i) * room.width];
                const float kept = weigh(scores[i], room.maxima[row + i], room.totals[row + i], first, own - block,
                                         call.scale, call.soft_cap);
                if (kept != 1.0f)
                    for (int k = 0; k < room.width; k += LANES) store(sums + k, load<Floats>(sums + k) * kept);
                for (int key = 0; key < KEYS; key += LANES)
                    Math::narrow(reinterpret_cast<typename Math::Number*>(weights[i]) + key, load<Floats>(scores[i] + key));
            }
            for (int column = 0; column < room.width; column += COLUMNS)
                add_rows<Math>(count, &room.sums[row * room.width + column], room.width, weights[0],
                               KEYS / Math::NUMBERS, &room.values[column], room.width, KEYS / Math::NUMBERS);
        }
    }

    for (int row = 0; row < rows; row++) {
        Stored* to = static_cast<Stored*>(call.out) +
                     ((begin + row / group) * call.heads + head + row % group) * dimensions;
        for (int i = 0; i < dimensions; i += LANES)
            Format::narrow(to + i, load<Floats>(&room.sums[row * room.width + i]) / room.totals[row]);
    }
}

template <class Format, class Math>
void run(const Call& call) {
    struct Part {
        int64_t sequence, kv_head, chunk;
    };
    std::vector<Part> parts;
    for (int64_t sequence = 0; sequence < call.sequences; sequence++)
        for (int64_t chunk = 0; chunk * CHUNK < call.starts[sequence + 1] - call.starts[sequence]; chunk++)
            for (int64_t kv_head = 0; kv_head < call.kv_heads; kv_head++) parts.push_back({sequence, kv_head, chunk});
    share(static_cast<int64_t>(parts.size()), static_cast<int>(call.threads),
          [&](int64_t i) { attend<Format, Math>(call, parts[i].sequence, parts[i].kv_head, parts[i].chunk); });
}

}  // namespace
}  // namespace ingot

using namespace ingot;

// kernels/paged_attention/reference.py says what each of them is; lengths in numbers, `bfloat16` 0 for float32.
extern "C" void ingot_paged_attention(int64_t bfloat16, const void* query, const void* keys, const void* values, void* out,
                                      int64_t query_step, int64_t block_step, int64_t token_step, int64_t head_step,
                                      const int32_t* starts, const int32_t* lengths, const int32_t* tables,
                                      int64_t table_step, int64_t sequences, int64_t block_size, int64_t heads,
                                      int64_t kv_heads, int64_t head_dim, float scale, int64_t window, const float* sinks,
                                      float soft_cap, int64_t threads) {
    const Call call = {query,  keys,       values,    out,        query_step, block_step, token_step, head_step,
                       starts, lengths,    tables,    table_step, sequences,  block_size, heads,      kv_heads,
                       head_dim, scale,    window,    sinks,      soft_cap,   threads};
    (bfloat16 ? run<BFloat16, OfBFloat16> : run<Float32, Singles<Float32>>)(call);
}
