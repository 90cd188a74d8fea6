// Threads that share the parts of one call.
#pragma once

#include <cstdint>
#include <functional>

namespace ingot {

// Calls part(0) ... part(parts - 1), on at most `threads` threads of which the caller's is one. Any order, all done at the
// end. One caller at a time.
void share(int64_t parts, int threads, const std::function<void(int64_t)>& part);

}  // namespace ingot
