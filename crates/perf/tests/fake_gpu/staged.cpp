// The kernels of what goes by way of the host, as work of a stream: their own parts, of which each
// is done when nothing keeps it from being done.
#include "device.h"

#include "../../../gpu/kernels/staged.h"

namespace {

// A launch whose CTAs each do a part of what the argument says.
template <class Argument, class Part>
struct Launched {
    // What a CTA has done.
    struct Progress {
        Part part;
        u64 put, taken, since, seen;
    };

    Argument argument;
    unsigned ctas;
    bool has_begun;
    std::vector<Progress> parts;

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
            Part part(argument);
            if (!part.lane.has_failed()) parts.push_back({part, 0, 0, 0, 0});
        }
    }

    static bool ends(Progress &done) {
        Part &part = done.part;
        while (done.taken < part.pieces) {
            while (done.put < part.pieces && done.put < done.taken + SLOTS) part.put(done.put++);
            if (!part.lane.is_answered(done.taken))
                return part.lane.gives_up(done.since, done.seen, part.manner(), part.progress(done.taken));
            part.take(done.taken++);
        }
        part.end();
        return true;
    }
};

template <class Argument, class Part>
Work work(const void *arguments, unsigned ctas) {
    Argument argument = *static_cast<const Argument *>(arguments);
    return [=] {
        using Launch = Launched<Argument, Part>;
        auto launched = std::make_shared<Launch>(Launch{argument, ctas, false, {}});
        return [=] { return launched->advance(); };
    };
}

}  // namespace

Work staged_work(const std::string &kernel, const void *arguments, unsigned ctas) {
    return kernel == "staged" ? work<Passing, Passage>(arguments, ctas) : work<Posting, Mail>(arguments, ctas);
}
