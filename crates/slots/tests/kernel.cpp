// The kernels for a host, where a thread plays a CTA: for tests in Rust, which have the carriers.
#include "../kernels/exchange.h"
#include "../kernels/mail.h"
#include "../kernels/packets.h"

// A CTA's part in a call, or in messages. It pauses now and then, at one access of some number.
extern "C" void play(const void* launch, u32 cta, u32 ctas, u32 kernel, u64 seed, u32 pauses) {
    here = {cta, 0, 1, ctas, seed, pauses, 100};
    const Exchanging* call = (const Exchanging*)launch;
    const Mailing* mailing = (const Mailing*)launch;
    switch (kernel) {
    case 0: Exchange<1>(*call).direct(); break;
    case 1: Exchange<2>(*call).shared(); break;
    // As a GPU reads records.
    case 2: Exchange<1, true>(*call).direct(); break;
    case 3: Exchange<2, true>(*call).shared(); break;
    case 4: PacketExchange(*call).run(); break;
    case 5: Mail<>(*mailing).run(); break;
    default: Mail<true>(*mailing).run();
    }
}
