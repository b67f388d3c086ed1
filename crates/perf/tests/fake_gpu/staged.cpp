// The kernel of operations by way of the host, as work of a stream: its own parts, of which each is done when nothing keeps it
// from being done.
#include "device.h"

#include "../../../gpu/kernels/staged.h"

namespace {

// What a CTA has done.
struct Part {
    Passage passage;
    u64 put, taken, since, progress;
};

struct Launched {
    Passing passing;
    unsigned ctas;
    bool has_begun;
    std::vector<Part> parts;

    // Whether all CTAs have ended.
    bool advance() {
        here.ctas = ctas;
        if (!has_begun) begin();
        bool is_over = true;
        for (here.cta = 0; here.cta < parts.size(); here.cta++) is_over &= ends(parts[here.cta]);
        return is_over;
    }

    void begin() {
        has_begun = true;
        for (here.cta = 0; here.cta < ctas; here.cta++) {
            Passage passage(passing);
            if (!passage.has_failed()) parts.push_back({passage, 0, 0, 0, 0});
        }
    }

    static bool ends(Part &part) {
        const Passage &passage = part.passage;
        while (part.taken < passage.pieces) {
            while (part.put < passage.pieces && part.put < part.taken + SLOTS) passage.put(part.put++);
            if (!passage.is_answered(part.taken)) return passage.gives_up(part.since, part.progress);
            passage.take(part.taken++);
        }
        passage.end();
        return true;
    }
};

}  // namespace

Work staged_work(const void *arguments, unsigned ctas) {
    Passing passing = *static_cast<const Passing *>(arguments);
    return [=] {
        auto launched = std::make_shared<Launched>(Launched{passing, ctas, false, {}});
        return [=] { return launched->advance(); };
    };
}
