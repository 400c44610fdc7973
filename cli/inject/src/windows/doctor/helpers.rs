//! Threads of inject that do one kind of work until they are stopped.

use std::os::windows::io::AsRawHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use windows_sys::Win32::Foundation::HANDLE;

use crate::windows::system::{self, Event};

/// The work of a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Spin,
    /// Waits for an event.
    Wait,
    /// Opens, reads and closes inject.exe repeatedly.
    File,
}

impl Work {
    /// The work's name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Spin => "spinning",
            Work::Wait => "waiting",
            Work::File => "file-calling",
        }
    }
}

/// A helper thread; it ends when this is dropped.
pub(super) struct Helper {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    wake: Arc<Event>,
    frame: Arc<AtomicUsize>,
}

impl Helper {
    /// Starts one and waits until it works; `None` if the system has no memory for it.
    pub(super) fn start(work: Work) -> Option<Helper> {
        let stop = Arc::new(AtomicBool::new(false));
        let (wake, ready) = (Arc::new(Event::new().ok()?), Arc::new(Event::new().ok()?));
        let frame = Arc::new(AtomicUsize::new(0));
        let (told, woken, begun, below) =
            (Arc::clone(&stop), Arc::clone(&wake), Arc::clone(&ready), Arc::clone(&frame));
        let thread = std::thread::Builder::new().spawn(move || {
            let here = std::hint::black_box(0u8);
            below.store(std::ptr::from_ref(&here).addr(), Ordering::Release);
            begun.set();
            match work {
                Work::Spin => spin(&told),
                Work::Wait => {
                    system::wait(woken.handle(), u32::MAX);
                }
                Work::File => file_calls(&told),
            }
        });
        let helper = Helper { thread: Some(thread.ok()?), stop, wake, frame };
        system::wait(ready.handle(), 5_000);
        Some(helper)
    }

    /// An address in the thread's first frame: its stack is committed from the stack pointer up to
    /// there.
    pub(super) fn frame(&self) -> usize {
        self.frame.load(Ordering::Acquire)
    }

    /// The thread's handle, open as long as this lives.
    pub(super) fn handle(&self) -> HANDLE {
        self.thread.as_ref().map_or(std::ptr::null_mut(), |thread| thread.as_raw_handle())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.wake.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn spin(stop: &AtomicBool) {
    let mut count = 0u64;
    while !stop.load(Ordering::Acquire) {
        count = std::hint::black_box(count.wrapping_add(1));
    }
}

fn file_calls(stop: &AtomicBool) {
    let path = std::env::current_exe().unwrap_or_default();
    while !stop.load(Ordering::Acquire) {
        let _ = std::hint::black_box(std::fs::read(&path));
    }
}
