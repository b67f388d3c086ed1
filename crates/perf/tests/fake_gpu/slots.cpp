// The kernels of slots, as work of a stream: a thread plays each CTA.
#include "device.h"

#include <atomic>
#include <chrono>

#include "../../../slots/kernels/exchange.h"
#include "../../../slots/kernels/mail.h"
#include "../../../slots/kernels/packets.h"

Work slots_work(const std::string &kernel, const void *arguments, unsigned ctas) {
    auto is_of = [&](const char *name) { return kernel.find(name) != std::string::npos; };
    if (is_of("messages")) {
        Mailing mailing = *static_cast<const Mailing *>(arguments);
        return by_threads([=] { Mail<>(mailing).run(); }, ctas, 1);
    }
    Exchanging call = *static_cast<const Exchanging *>(arguments);
    if (is_of("packets")) return by_threads([=] { PacketExchange(call).run(); }, ctas, 1);
    bool is_shared = is_of("shared");
    auto run = [=] { is_shared ? Exchange<2>(call).shared() : Exchange<1>(call).direct(); };
    return by_threads(run, ctas, 1);
}

// For tests: pinned memory that is as long as a box of slots is refused on a device (-1: none).
static std::atomic<int> without_slots{-1};
// Whether that ends once pinned memory of the device was freed, which takes a while then.
static std::atomic<bool> until_freed{false};
extern "C" {
int fake_refuse_slots(int device) { return until_freed = false, without_slots = device, 0; }
int fake_refuse_until_freed(int device) { return until_freed = true, without_slots = device, 0; }
}
void *pinned_memory(int device, size_t bytes) {
    bool is_refused = device == without_slots && bytes >> 19 != 0 && bytes >> 23 == 0;
    return is_refused ? nullptr : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}
void pinned_memory_is_freed(int device) {
    if (!until_freed || device != without_slots) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    without_slots = -1;
}
