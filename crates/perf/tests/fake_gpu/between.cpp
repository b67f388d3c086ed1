// The kernels between GPUs, as work of a stream: a thread plays each warp. Of kernels of messages,
// only launches without messages do what they should: nothing.
#include "device.h"

#include <atomic>

#include "../../../gpu/kernels/led.h"
#include "../../../gpu/kernels/pinned.h"

namespace {

typedef void Kernel(const Arguments &);

template <class Protocol>
void two_shots(const Arguments &arguments) {
    TwoShots<Protocol>(arguments).run();
}
template <class Take>
void led(const Arguments &arguments) {
    LedExchange<Take>(arguments).run();
}
template <class Protocol, class Type>
void sum(const Arguments &arguments) {
    Exchange<Protocol, IntoSum<Type>, 2>(arguments).run();
}

// Never destroyed: threads may launch kernels as the process exits.
const std::map<std::string, Kernel *> &KERNELS = *new std::map<std::string, Kernel *>{
    {"one_shot_packets", exchange<Packets, IntoOne>},
    {"one_shot_lines", exchange<Lines, IntoOne>},
    {"one_shot_quads", exchange<Quads, IntoOne>},
    {"two_shots_packets", two_shots<Packets>},
    {"two_shots_lines", two_shots<Lines>},
    {"two_shots_quads", two_shots<Quads>},
    {"side_by_side_packets", exchange<Packets, SideBySide>},
    {"side_by_side_lines", exchange<Lines, SideBySide>},
    {"side_by_side_quads", exchange<Quads, SideBySide>},
    {"led_reduction", led<IntoOne>},
    {"led_side_by_side", led<SideBySide>},
    {"sum_packets_f16", sum<Packets, F16>},
    {"sum_packets_f32", sum<Packets, F32>},
    {"sum_packets_bf16", sum<Packets, Bf16>},
    {"sum_lines_f16", sum<Lines, F16>},
    {"sum_lines_f32", sum<Lines, F32>},
    {"sum_lines_bf16", sum<Lines, Bf16>},
};

// A launch. Its threads keep it, as they may outlive the stream.
struct Launch {
    std::function<void()> kernel;
    u32 ctas, warps;
    bool has_begun = false;
    std::atomic<u32> running{0};
};

void play(const std::shared_ptr<Launch> &launch, u32 cta, u32 warp) {
    here = {cta, warp, launch->warps, launch->ctas, 0, 0, 0};
    launch->kernel();
    launch->running--;
}

// Whether all warps have ended.
bool advance(const std::shared_ptr<Launch> &launch) {
    if (!launch->has_begun) {
        launch->has_begun = true;
        launch->running = launch->ctas * launch->warps;
        for (u32 cta = 0; cta < launch->ctas; cta++)
            for (u32 warp = 0; warp < launch->warps; warp++) std::thread(play, launch, cta, warp).detach();
    }
    return launch->running == 0;
}

bool is_of_slots(const std::string &kernel) { return kernel.rfind("slots_", 0) == 0; }

}  // namespace

bool is_between_gpus(const std::string &kernel) {
    if (is_of_slots(kernel)) return true;
    return KERNELS.count(kernel) || kernel.find("_messages_") != std::string::npos;
}

Work work_between_gpus(const std::string &kernel, const void *arguments, unsigned ctas, unsigned threads) {
    if (is_of_slots(kernel)) return slots_work(kernel, arguments, ctas);
    auto found = KERNELS.find(kernel);
    if (found == KERNELS.end()) return [] { return [] { return true; }; };
    Arguments copied = *static_cast<const Arguments *>(arguments);
    return by_threads([=] { found->second(copied); }, ctas, threads / LANES);
}

Work by_threads(const std::function<void()> &kernel, unsigned ctas, unsigned warps) {
    return [=] {
        auto launch = std::make_shared<Launch>();
        launch->kernel = kernel;
        launch->ctas = ctas, launch->warps = warps;
        return [=] { return advance(launch); };
    };
}
