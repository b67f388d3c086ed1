# Shared by scripts that make bindings of C headers by Debian 12's bindgen. Sourced after
# tests/vm/lib.sh.

# An `extern` block per function becomes the type of a pointer to it: nothing is linked.
pointers() {
    awk '
        /^extern "C" \{$/ { inside = 1; next }
        inside && /^\}$/ { inside = 0; next }
        inside && match($0, /pub fn [a-z_0-9]+/) {
            name = substr($0, RSTART + 7, RLENGTH - 7)
            sub(/pub fn [a-z_0-9]+/, "pub type " name " = unsafe extern \"C\" fn")
        }
        { print }'
}
