#include "workers.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ingot {
namespace {

// How long a thread looks for work before it sleeps: from one op of a step to the next there is less.
constexpr std::chrono::microseconds LOOKS{50};

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

template <class Value>
void wait_while(const std::atomic<Value>& what, Value is) {
    const auto end = std::chrono::steady_clock::now() + LOOKS;
    while (what.load(std::memory_order_acquire) == is) {
        for (int i = 0; i < 32; i++) relax();
        if (std::chrono::steady_clock::now() > end) return what.wait(is, std::memory_order_acquire);
    }
}

// Threads that take parts of whatever call there is, as many as any call has asked for; a call wakes as many as it can use,
// whatever there are. The caller never waits for one of them to wake up, only for parts that were taken: a thread that gets no
// processor holds up nothing. They are never joined, and end with the process.
class Workers {
  public:
    void run(uint32_t parts, size_t helpers, const std::function<void(int64_t)>& part) {
        const std::lock_guard<std::mutex> one(calling_);
        while (helpers_.size() < helpers && start()) {
        }
        if (helpers > helpers_.size()) helpers = helpers_.size();
        part_.store(&part, std::memory_order_relaxed);
        unfinished_.store(parts, std::memory_order_relaxed);
        open_.store(uint64_t{++call_} << 32 | parts, std::memory_order_release);
        for (size_t i = 0; i < helpers; i++) {
            // In one order with what a thread does before it sleeps, as `notify_one` does not wake one that it cannot see yet.
            helpers_[i].call.store(call_, std::memory_order_seq_cst);
            helpers_[i].call.notify_one();
        }
        take();
        for (uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) wait_while(unfinished_, left);
    }

  private:
    // On cache lines of their own: each looks at its number all the time.
    struct alignas(64) Helper {
        std::atomic<uint32_t> call;
    };

    // One more, if the system allows it: where it does not, those that there are take all parts, or the caller alone does.
    bool start() {
        Helper& helper = helpers_.emplace_back(call_);
        try {
            std::thread(&Workers::work, this, std::cref(helper.call), call_).detach();
            return true;
        } catch (const std::system_error&) {
            helpers_.pop_back();
            return false;
        }
    }

    // A part is taken by counting down the lower half of `open_`. Whoever has taken one knows that its call goes on, so that
    // what belongs to the call can be read.
    void take() {
        uint64_t open = open_.load(std::memory_order_acquire);
        while (static_cast<uint32_t>(open) != 0) {
            if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
            (*part_.load(std::memory_order_relaxed))(static_cast<uint32_t>(open) - 1);
            if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
            open = open_.load(std::memory_order_acquire);
        }
    }

    void work(const std::atomic<uint32_t>& call, uint32_t seen) {
        for (;; take()) {
            wait_while(call, seen);
            seen = call.load(std::memory_order_acquire);
        }
    }

    std::mutex calling_;
    uint32_t call_ = 0;
    std::deque<Helper> helpers_;  // which do not move as more are added
    std::atomic<const std::function<void(int64_t)>*> part_{nullptr};
    std::atomic<uint32_t> unfinished_{0};
    std::atomic<uint64_t> open_{0};  // the number of the call, and its parts that nobody has taken
};

}  // namespace

void share(int64_t parts, int threads, const std::function<void(int64_t)>& part) {
    const int helpers = static_cast<int>(parts < threads ? parts : threads) - 1;
    if (helpers <= 0) {
        for (int64_t i = 0; i < parts; i++) part(i);
        return;
    }
    static Workers& workers = *new Workers;
    workers.run(static_cast<uint32_t>(parts), static_cast<size_t>(helpers), part);
}

void share_runs(int64_t count, int64_t numbers, int64_t worth, int threads,
                const std::function<void(int64_t, int64_t)>& some) {
    const int64_t together = (worth + numbers - 1) / numbers;
    share((count + together - 1) / together, threads, [&](int64_t part) {
        const int64_t end = (part + 1) * together;
        some(part * together, end < count ? end : count);
    });
}

}  // namespace ingot
