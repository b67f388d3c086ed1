// The kernels of slots, as work of a stream: a thread plays each CTA.
#include "device.h"

#include "../../../slots/kernels/all_reduce.h"

Work slots_work(const std::string &kernel, const void *arguments, unsigned ctas) {
    Reducing reducing = *static_cast<const Reducing *>(arguments);
    bool is_shared = kernel.find("shared") != std::string::npos;
    auto run = [=] { is_shared ? AllReduce(reducing).shared() : AllReduce(reducing).direct(); };
    return by_threads(run, ctas, 1);
}
