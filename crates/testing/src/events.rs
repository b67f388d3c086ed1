//! The `tracing` events of a test's thread.
//!
//! One subscriber serves the whole process. One for each test would miss events: `tracing` asks the
//! first thread that reaches an event whether anybody wants it, and keeps the answer for all
//! threads.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Hear = Box<dyn FnMut(&str)>;

thread_local! {
    /// The receiver of this thread's events, if there is one.
    static HEAR: RefCell<Option<Hear>> = const { RefCell::new(None) };
}

/// Does some work. `hear` gets the text of each event that this thread emits meanwhile.
///
/// # Panics
/// If the process has another subscriber.
pub fn hearing<T>(hear: impl FnMut(&str) + 'static, work: impl FnOnce() -> T) -> T {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing::subscriber::set_global_default(Hearer).unwrap());
    HEAR.set(Some(Box::new(hear)));
    let done = work();
    HEAR.set(None);
    done
}

struct Hearer;

impl Subscriber for Hearer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "message" {
            return;
        }
        HEAR.with_borrow_mut(|hear| {
            if let Some(hear) = hear {
                hear(&format!("{value:?}"));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::hearing;

    fn say() {
        tracing::warn!("said");
    }

    #[test]
    fn an_event_that_other_threads_have_reached_first_is_heard() {
        std::thread::spawn(say).join().unwrap();
        let heard = Rc::new(Cell::new(0));
        let count = Rc::clone(&heard);
        hearing(
            move |text| count.set(count.get() + u32::from(text == "said")),
            || {
                say();
                std::thread::spawn(say).join().unwrap();
                say();
            },
        );
        say();
        assert_eq!(heard.get(), 2);
    }
}
