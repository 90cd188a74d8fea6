// Threads that share the parts of one call.
#pragma once

#include <cstdint>
#include <functional>

namespace ingot {

// Calls part(0) ... part(parts - 1), in any order, on at most `threads` threads, of which the caller's is one. All are done
// when it returns. Of several callers one waits for the other.
void share(int64_t parts, int threads, const std::function<void(int64_t)>& part);

// Calls rows(begin, end) for all of `count` rows, so many at a time as are worth a thread's while; `numbers` is the size of
// one.
void share_rows(int64_t count, int64_t numbers, int threads, const std::function<void(int64_t, int64_t)>& rows);

}  // namespace ingot
