# Sourced by scripts that run tests: list_skipped lists the skipped ones, and why.

SPARK_CCL_TEST_SKIPPED=$(mktemp)
export SPARK_CCL_TEST_SKIPPED

list_skipped() {
    sort -u "$SPARK_CCL_TEST_SKIPPED" | awk '
        { test = $0; sub(/.*: /, "", test); reason = substr($0, 1, length($0) - length(test) - 2) }
        reason != last { printf "  for lack of %s\n", reason; last = reason }
        { printf "    %s\n", test }
        END { printf "Skipped tests: %d\n", NR }'
    rm "$SPARK_CCL_TEST_SKIPPED"
}
