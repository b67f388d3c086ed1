//! The table of all variables that have an effect. `docs/environment.md` explains each; a test
//! compares the two.

use crate::nearest::nearest;

/// A variable that has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Whether its value is secret and never printed.
    pub secret: bool,
}

/// All variables that have an effect, except those of the launchers.
pub const VARIABLES: &[Variable] = &[
    plain("SPARK_CCL_TIMEOUT"),
    plain("SPARK_CCL_INIT_TIMEOUT"),
    plain("SPARK_CCL_LOST_AFTER"),
    plain("SPARK_CCL_CUT_AFTER"),
    plain("SPARK_CCL_PATH"),
    plain("SPARK_CCL_NET"),
    plain("NCCL_NET"),
    plain("NCCL_IB_DISABLE"),
    plain("SPARK_CCL_SHM"),
    plain("SPARK_CCL_SINGLE_COPY"),
    plain("NCCL_SHM_DISABLE"),
    plain("SPARK_CCL_ALGO"),
    plain("NCCL_ALGO"),
    plain("SPARK_CCL_TUNING"),
    plain("SPARK_CCL_SOCKET_IFNAME"),
    plain("NCCL_SOCKET_IFNAME"),
    plain("SPARK_CCL_SOCKET_FAMILY"),
    plain("NCCL_SOCKET_FAMILY"),
    plain("SPARK_CCL_SOCKETS"),
    plain("NCCL_SOCKET_NTHREADS"),
    plain("NCCL_NSOCKS_PERTHREAD"),
    plain("SPARK_CCL_IB_HCA"),
    plain("NCCL_IB_HCA"),
    plain("SPARK_CCL_IB_GID_INDEX"),
    plain("NCCL_IB_GID_INDEX"),
    plain("SPARK_CCL_IB_TIMEOUT"),
    plain("NCCL_IB_TIMEOUT"),
    plain("SPARK_CCL_IB_RETRY_CNT"),
    plain("NCCL_IB_RETRY_CNT"),
    plain("SPARK_CCL_IB_TC"),
    plain("NCCL_IB_TC"),
    plain("SPARK_CCL_IB_QPS_PER_CONNECTION"),
    plain("NCCL_IB_QPS_PER_CONNECTION"),
    plain("SPARK_CCL_IBVERBS_LIBRARY"),
    plain("SPARK_CCL_BACKEND"),
    plain("SPARK_CCL_DEVICE"),
    plain("SPARK_CCL_SHARE_GPU"),
    plain("SPARK_CCL_GPU_PROTOCOL"),
    plain("SPARK_CCL_GPU_PINNED"),
    plain("SPARK_CCL_GPU_DMABUF"),
    plain("SPARK_CCL_GPU_CTAS"),
    plain("SPARK_CCL_GPU_SET_ASIDE"),
    plain("SPARK_CCL_GPU_SLOTS"),
    plain("SPARK_CCL_NCCL_LIBRARY"),
    plain("SPARK_CCL_NCCL_BLOCKING"),
    plain("SPARK_CCL_NCCL_VERSION"),
    plain("SPARK_CCL_NCCL_FALLBACK"),
    plain("SPARK_CCL_TORCH_NCCL"),
    plain("SPARK_CCL_SLOT_BYTES"),
    plain("SPARK_CCL_SLOTS"),
    plain("NCCL_BUFFSIZE"),
    secret("SPARK_CCL_SECRET"),
    plain("SPARK_CCL_SECRET_FILE"),
    plain("SPARK_CCL_COMM_ID"),
    plain("NCCL_COMM_ID"),
    plain("SPARK_CCL_RANK"),
    plain("SPARK_CCL_SIZE"),
    plain("SPARK_CCL_LOCAL_RANK"),
    plain("SPARK_CCL_LOCAL_SIZE"),
    secret("SPARK_CCL_UNIQUE_ID"),
    plain("SPARK_CCL_UNIQUE_ID_FILE"),
    plain("SPARK_CCL_LOG"),
    plain("NCCL_DEBUG"),
    plain("SPARK_CCL_LOG_FILE"),
    plain("NCCL_DEBUG_FILE"),
    plain("SPARK_CCL_RAS"),
    plain("NCCL_RAS_ENABLE"),
    plain("NCCL_RAS_ADDR"),
    plain("SPARK_CCL_RECORD"),
    plain("SPARK_CCL_INSPECTOR"),
    plain("SPARK_CCL_INSPECTOR_FORMAT"),
    plain("SPARK_CCL_INSPECTOR_EVERY"),
    plain("SPARK_CCL_PROGRESS_THREAD"),
    plain("SPARK_CCL_HELPERS"),
    plain("SPARK_CCL_CONF_FILE"),
    plain("NCCL_CONF_FILE"),
];

/// Variables that no setting uses, but that have an effect elsewhere through [`Env`](crate::Env).
pub(crate) const READ_ELSEWHERE: &[&str] = &[
    "SPARK_CCL_RANK",
    "SPARK_CCL_SIZE",
    "SPARK_CCL_LOCAL_RANK",
    "SPARK_CCL_LOCAL_SIZE",
    "SPARK_CCL_UNIQUE_ID",
    "SPARK_CCL_UNIQUE_ID_FILE",
    "SPARK_CCL_CONF_FILE",
    "NCCL_CONF_FILE",
    "SPARK_CCL_NCCL_VERSION",
    "SPARK_CCL_NCCL_FALLBACK",
    "SPARK_CCL_TORCH_NCCL",
];

/// The entry of a variable, if it has an effect.
pub(crate) fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}

/// Suggests a variable in place of an unknown one, whose value is never shown: it may be a secret
/// under a misspelt name.
pub(crate) fn hint(name: &str) -> String {
    let known = VARIABLES.iter().map(|variable| variable.name);
    nearest(name, known.filter(|known| known.starts_with("SPARK_CCL_")))
        .map(|near| format!("; did you mean {near}?"))
        .unwrap_or_default()
}

/// A value as text for users. It is redacted if it is secret, or if the variable is unknown: that
/// may be a secret under a misspelt name.
pub fn shown<'a>(name: &str, value: &'a str) -> &'a str {
    let is_plain = find(name).map_or(name.starts_with("NCCL_"), |variable| !variable.secret);
    if is_plain { value } else { "redacted" }
}

const fn plain(name: &'static str) -> Variable {
    Variable {
        name,
        secret: false,
    }
}

const fn secret(name: &'static str) -> Variable {
    Variable { name, secret: true }
}
