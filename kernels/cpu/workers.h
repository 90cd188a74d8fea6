// Threads that share the parts of one call.
#pragma once

#include <cstdint>
#include <functional>

namespace ingot {

// Calls part(0) ... part(parts - 1), in any order, on at most `threads` threads, of which the caller's is one. All are done
// when it returns. Of several callers one waits for the other.
void share(int64_t parts, int threads, const std::function<void(int64_t)>& part);

// Calls some(begin, end) for all of `count` rows or panels, so many at a time as are worth a thread's while: `worth` numbers,
// of which each has `numbers`.
void share_runs(int64_t count, int64_t numbers, int64_t worth, int threads, const std::function<void(int64_t, int64_t)>& some);

}  // namespace ingot
