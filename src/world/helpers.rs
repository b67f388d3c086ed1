//! The threads that help a rank with long calls of host memory.

use std::sync::{Arc, Weak};

use spark_ccl_compute::Helpers;
use spark_ccl_config::Settings;
use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;
use spark_ccl_topology::Cores;

/// Seven gain little more, except with registered memory (`docs/what-bounds-it.md`), and programs
/// may have a use for their cores.
const MOST: usize = 3;

/// The pool that the worlds of this process share, while there is one. A program may have many
/// worlds (each communicator of the NCCL interface is one), but has its cores only once.
static SHARED: PerProcess<Mutex<Weak<Pool>>> = PerProcess::new();

/// The helpers of a rank, and what their number comes from.
pub(crate) struct Pool {
    pub(crate) helpers: Arc<Helpers>,
    /// The bound of their number.
    cores: Cores,
    /// Whether the settings say how many.
    is_set: bool,
}

impl Pool {
    /// A pool for one rank alone, where the ranks are threads of one process.
    pub(super) fn new(settings: &Settings, cores: Cores) -> Arc<Self> {
        let count = settings.helpers.unwrap_or(cores.spare().min(MOST));
        let pool = Self {
            helpers: Arc::new(Helpers::new(count, move || cores.settle())),
            cores,
            is_set: settings.helpers.is_some(),
        };
        let text = pool.describe();
        spark_ccl_log::info!("calls of 1 MiB and more: {text}");
        Arc::new(pool)
    }

    /// The pool of this process. The settings of the first of its worlds say how many helpers there
    /// are.
    pub(super) fn shared(settings: &Settings, cores: Cores) -> Arc<Self> {
        Self::shared_in(SHARED.get(), settings, cores)
    }

    fn shared_in(shared: &Mutex<Weak<Self>>, settings: &Settings, cores: Cores) -> Arc<Self> {
        let mut shared = shared.lock();
        shared.upgrade().unwrap_or_else(|| {
            let pool = Self::new(settings, cores);
            *shared = Arc::downgrade(&pool);
            pool
        })
    }

    /// How many threads help with long calls, and what bounds their number.
    pub(crate) fn describe(&self) -> String {
        let (count, cores) = (self.helpers.count(), &self.cores);
        match (count, self.is_set) {
            (1, false) => format!("1 helper thread ({cores})"),
            (_, false) => format!("{count} helper threads ({cores})"),
            (_, true) => format!("{count} helper threads (SPARK_CCL_HELPERS; {cores})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_of_a_process_share_a_pool_and_the_first_says_how_many() {
        let shared = Mutex::default();
        let world = |helpers| {
            let mut settings = Settings::default();
            settings.helpers = Some(helpers);
            Pool::shared_in(&shared, &settings, Cores::of(&[]))
        };
        let (first, second) = (world(2), world(5));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(second.describe().starts_with("2 helper threads"));
        drop(first);
        assert_eq!(world(5).helpers.count(), 2, "the second world has it");
        drop(second);
        assert_eq!(world(5).helpers.count(), 5, "no world has it");
    }
}
