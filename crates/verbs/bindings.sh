#!/bin/bash
# Makes src/raw/bindings.rs from rdma-core's verbs.h, with the headers and the bindgen of Debian 12.
#   bindings.sh            writes the file
#   bindings.sh --check    fails if the file is not what the headers give, for x86-64 or for aarch64
set -euo pipefail
cd "$(dirname "$0")"
. ../../tests/vm/lib.sh
. ../../tests/bindgen.sh
file=src/raw/bindings.rs
header=/usr/include/infiniband/verbs.h

functions=(
    ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid
    ibv_open_device ibv_close_device ibv_query_device ibv_query_port
    _ibv_query_gid_table
    ibv_get_async_event ibv_ack_async_event
    ibv_alloc_pd ibv_dealloc_pd
    ibv_reg_mr ibv_reg_mr_iova2 ibv_reg_dmabuf_mr ibv_dereg_mr
    ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event ibv_ack_cq_events
    ibv_create_cq ibv_destroy_cq
    ibv_create_qp ibv_modify_qp ibv_query_qp ibv_destroy_qp
)
types=(
    ibv_access_flags ibv_atomic_cap ibv_device_attr ibv_event_type ibv_gid_entry ibv_gid_type
    ibv_mtu ibv_port_attr ibv_port_state ibv_qp_attr ibv_qp_attr_mask ibv_qp_init_attr
    ibv_qp_state ibv_qp_type ibv_send_flags ibv_send_wr ibv_recv_wr ibv_sge ibv_wc ibv_wc_flags
    ibv_wc_opcode ibv_wc_status ibv_wr_opcode
)
# Declared in src/raw.rs: what is only ever pointed at, and what differs between machines.
elsewhere=(
    _compat_ibv_port_attr ibv_ah ibv_device ibv_mw ibv_mw_bind ibv_srq ibv_wq
    pthread_cond_t pthread_mutex_t
)

any() {
    local IFS='|'
    echo "^($*)\$"
}

# The bindings as the compiler sees them for a machine.
generate() {
    local machine=$1
    cat <<'HEADER'
// Made by bindings.sh from rdma-core's verbs.h. Do not edit. The header is used under the second of
// the two licenses that its notice names:
//
HEADER
    sed '1d; /\*\//,$d; s|^ \*|//|' "$header"
    echo
    bindgen --disable-header-comment --no-layout-tests --no-doc-comments --no-prepend-enum-name \
        --size_t-is-usize --use-core --ctypes-prefix core::ffi --no-derive-debug \
        --raw-line "use super::{$(IFS=,; echo "${elsewhere[*]}")};" \
        --blocklist-type "$(any "${elsewhere[@]}" '__pthread.*' '__atomic_wide_counter.*' __ssize_t _ibv_device_ops)" \
        --allowlist-function "$(any "${functions[@]}")" \
        --allowlist-type "$(any "${types[@]}")" \
        "$header" -- \
        --target="$machine-linux-gnu" -isystem "/usr/$machine-linux-gnu/include" |
        pointers | rustfmt --edition 2024 --config max_width=100
}

need bindgen libclang1 libclang-common-14-dev libibverbs-dev
case ${1:-} in
--check)
    need libc6-dev-arm64-cross
    for machine in x86_64 aarch64; do
        diff -u "$file" <(generate $machine) ||
            { echo "$file is not what verbs.h gives for $machine" >&2 && exit 1; }
    done
    ;;
"") generate x86_64 >"$file" ;;
*) echo "usage: bindings.sh [--check]" >&2 && exit 2 ;;
esac
