// The kernels of slots, as work of a stream: a thread plays each CTA.
#include "device.h"

#include "../../../slots/kernels/exchange.h"
#include "../../../slots/kernels/packets.h"

Work slots_work(const std::string &kernel, const void *arguments, unsigned ctas) {
    Exchanging call = *static_cast<const Exchanging *>(arguments);
    auto is_of = [&](const char *name) { return kernel.find(name) != std::string::npos; };
    if (is_of("packets")) return by_threads([=] { PacketExchange(call).run(); }, ctas, 1);
    bool is_shared = is_of("shared");
    auto run = [=] { is_shared ? Exchange<2>(call).shared() : Exchange<1>(call).direct(); };
    return by_threads(run, ctas, 1);
}
