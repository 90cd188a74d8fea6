#include "workers.h"

#include <atomic>
#include <thread>

namespace ingot {
namespace {

// Sleeping threads, as many as any call has asked for. They are never joined: they end with the process.
class Workers {
  public:
    void run(int64_t parts, int helpers, const std::function<void(int64_t)>& part) {
        for (; count_ < helpers; count_++) std::thread(&Workers::work, this, calls_.load()).detach();
        part_ = &part;
        parts_ = parts;
        next_.store(0, std::memory_order_relaxed);
        busy_.store(count_, std::memory_order_relaxed);
        calls_.fetch_add(1, std::memory_order_release);
        calls_.notify_all();
        take();
        for (int busy; (busy = busy_.load(std::memory_order_acquire)) != 0;) busy_.wait(busy);
    }

  private:
    void take() {
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < parts_;) (*part_)(i);
    }

    void work(uint32_t seen) {
        for (;;) {
            calls_.wait(seen, std::memory_order_acquire);
            seen = calls_.load(std::memory_order_acquire);
            take();
            if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
        }
    }

    int count_ = 0;
    const std::function<void(int64_t)>* part_ = nullptr;
    int64_t parts_ = 0;
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};
    std::atomic<uint32_t> calls_{0};
};

}  // namespace

void share(int64_t parts, int threads, const std::function<void(int64_t)>& part) {
    const int helpers = static_cast<int>(parts < threads ? parts : threads) - 1;
    if (helpers <= 0) {
        for (int64_t i = 0; i < parts; i++) part(i);
        return;
    }
    static Workers& workers = *new Workers;
    workers.run(parts, helpers, part);
}

}  // namespace ingot
