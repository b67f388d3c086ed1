//! Every variable with an effect. `docs/environment.md` explains each (a test compares the two).

/// A variable that has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Whether its value is secret and never printed.
    pub secret: bool,
}

/// Every variable that has an effect, except the launchers' own.
pub const VARIABLES: &[Variable] = &[
    open("SPARK_CCL_TIMEOUT"),
    open("SPARK_CCL_INIT_TIMEOUT"),
    open("SPARK_CCL_LOST_AFTER"),
    open("SPARK_CCL_CUT_AFTER"),
    open("SPARK_CCL_PATH"),
    open("SPARK_CCL_NET"),
    open("NCCL_NET"),
    open("NCCL_IB_DISABLE"),
    open("SPARK_CCL_SHM"),
    open("SPARK_CCL_SINGLE_COPY"),
    open("NCCL_SHM_DISABLE"),
    open("SPARK_CCL_ALGO"),
    open("NCCL_ALGO"),
    open("SPARK_CCL_TUNING"),
    open("SPARK_CCL_SOCKET_IFNAME"),
    open("NCCL_SOCKET_IFNAME"),
    open("SPARK_CCL_SOCKET_FAMILY"),
    open("NCCL_SOCKET_FAMILY"),
    open("SPARK_CCL_SOCKETS"),
    open("NCCL_SOCKET_NTHREADS"),
    open("NCCL_NSOCKS_PERTHREAD"),
    open("SPARK_CCL_IB_HCA"),
    open("NCCL_IB_HCA"),
    open("SPARK_CCL_IB_GID_INDEX"),
    open("NCCL_IB_GID_INDEX"),
    open("SPARK_CCL_IB_TIMEOUT"),
    open("NCCL_IB_TIMEOUT"),
    open("SPARK_CCL_IB_RETRY_CNT"),
    open("NCCL_IB_RETRY_CNT"),
    open("SPARK_CCL_IB_TC"),
    open("NCCL_IB_TC"),
    open("SPARK_CCL_IB_QPS_PER_CONNECTION"),
    open("NCCL_IB_QPS_PER_CONNECTION"),
    open("SPARK_CCL_IBVERBS_LIBRARY"),
    open("SPARK_CCL_BACKEND"),
    open("SPARK_CCL_NCCL_LIBRARY"),
    open("SPARK_CCL_NCCL_BLOCKING"),
    open("SPARK_CCL_SLOT_BYTES"),
    open("SPARK_CCL_SLOTS"),
    open("NCCL_BUFFSIZE"),
    secret("SPARK_CCL_SECRET"),
    open("SPARK_CCL_SECRET_FILE"),
    open("SPARK_CCL_COMM_ID"),
    open("NCCL_COMM_ID"),
    open("SPARK_CCL_RANK"),
    open("SPARK_CCL_SIZE"),
    open("SPARK_CCL_LOCAL_RANK"),
    open("SPARK_CCL_LOCAL_SIZE"),
    secret("SPARK_CCL_UNIQUE_ID"),
    open("SPARK_CCL_UNIQUE_ID_FILE"),
    open("SPARK_CCL_LOG"),
    open("NCCL_DEBUG"),
    open("SPARK_CCL_LOG_FILE"),
    open("NCCL_DEBUG_FILE"),
    open("SPARK_CCL_PROGRESS_THREAD"),
    open("SPARK_CCL_CONF_FILE"),
    open("NCCL_CONF_FILE"),
];

/// Variables that other parts of the library read through [`Env`](crate::Env).
pub(crate) const READ_ELSEWHERE: &[&str] = &[
    "SPARK_CCL_RANK",
    "SPARK_CCL_SIZE",
    "SPARK_CCL_LOCAL_RANK",
    "SPARK_CCL_LOCAL_SIZE",
    "SPARK_CCL_UNIQUE_ID",
    "SPARK_CCL_UNIQUE_ID_FILE",
    "SPARK_CCL_CONF_FILE",
    "NCCL_CONF_FILE",
];

/// The variable of that name, if it has an effect.
pub(crate) fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}

const fn open(name: &'static str) -> Variable {
    Variable {
        name,
        secret: false,
    }
}

const fn secret(name: &'static str) -> Variable {
    Variable { name, secret: true }
}
