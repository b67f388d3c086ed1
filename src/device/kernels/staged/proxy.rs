//! The thread that passes the pieces of all communicators of this process.

use super::course::Course;
use crate::call::or_abort;
use crate::error::Error;
use parking_lot::{Condvar, Mutex};
use spark_ccl_fork::PerProcess;
use std::time::{Duration, Instant};

/// How long after the last piece it keeps its core, and how long it then only lets other threads have it in between.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(20);
/// How long it then sleeps between two looks, as long as pieces may come.
const NAP: Duration = Duration::from_micros(50);
/// The longest of these sleeps, which grow: a graph that was captured may never be launched again.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How long it sleeps where nothing may come unless it is woken.
const SLEEP: Duration = Duration::from_millis(50);
/// How often it looks at everything before it asks for the time.
const LOOKS: u32 = 16;

static PROXY: PerProcess<Proxy> = PerProcess::new();

#[derive(Default)]
struct Proxy {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that the thread has not got yet.
    added: Vec<Course>,
    is_running: bool,
    /// Something has changed since the thread has looked.
    has_news: bool,
}

/// Passes a communicator's pieces from now on, until its channel is closed.
pub(super) fn add(course: Course) -> Result<(), Error> {
    let proxy = PROXY.get();
    let mut state = proxy.state.lock();
    if !state.is_running {
        let thread = std::thread::Builder::new().name("spark-proxy".to_owned());
        let started = thread.spawn(|| or_abort(|| proxy.run()));
        started.map_err(|error| Error::System {
            what: "starting the thread that passes device memory to other ranks".to_owned(),
            problem: error.to_string(),
        })?;
        state.is_running = true;
    }
    state.added.push(course);
    state.has_news = true;
    proxy.news.notify_one();
    Ok(())
}

/// Has the thread look, if it sleeps.
pub(super) fn wake() {
    let proxy = PROXY.get();
    proxy.state.lock().has_news = true;
    proxy.news.notify_one();
}

impl Proxy {
    /// Ends when there are no communicators any more.
    fn run(&self) {
        let mut courses = Vec::new();
        let mut last = Instant::now();
        while self.take_news(&mut courses) {
            // In turns with what else there is to do, since one communicator alone can move all the time.
            if look_at_all(&mut courses) {
                last = Instant::now();
            }
            courses.retain_mut(|course| !course.is_over());
            let idle = last.elapsed();
            if !courses.iter().any(Course::expects) {
                self.sleep(SLEEP);
            } else if idle > YIELD {
                self.sleep((idle / 1000).clamp(NAP, LONGEST_NAP));
            } else if idle > SPIN {
                std::thread::yield_now();
            }
        }
    }

    /// Takes the communicators that have been added; whether there are any at all.
    fn take_news(&self, courses: &mut Vec<Course>) -> bool {
        let mut state = self.state.lock();
        courses.append(&mut state.added);
        state.is_running = !courses.is_empty();
        state.is_running
    }

    fn sleep(&self, limit: Duration) {
        let mut state = self.state.lock();
        if !state.has_news {
            self.news.wait_for(&mut state, limit);
        }
        state.has_news = false;
    }
}

/// Whether any had something to do in a few looks.
fn look_at_all(courses: &mut [Course]) -> bool {
    (0..LOOKS).any(|_| {
        let mut moved = false;
        for course in courses.iter_mut() {
            moved |= course.advance();
        }
        std::hint::spin_loop();
        moved
    })
}
