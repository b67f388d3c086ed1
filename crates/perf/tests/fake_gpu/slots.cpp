// The kernels of slots, as work of a stream: a thread plays each CTA.
#include "device.h"

#include "../../../slots/kernels/exchange.h"

Work slots_work(const std::string &kernel, const void *arguments, unsigned ctas) {
    Exchanging call = *static_cast<const Exchanging *>(arguments);
    bool is_shared = kernel.find("shared") != std::string::npos;
    auto run = [=] { is_shared ? Exchange(call).shared() : Exchange(call).direct(); };
    return by_threads(run, ctas, 1);
}
