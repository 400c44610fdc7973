//! Handles a panic of the recorder: the trace and the status report it, and the target continues.
//! On a thread of the target, the panic leaves the call into the recorder, and the thread
//! continues. A thread of the recorder's own parks forever.

use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// The first panic's position and text, for END's detail and the status.
pub(crate) struct Message {
    /// 0 = none, 1 = being written, 2 = complete.
    state: AtomicU32,
    len: AtomicUsize,
    text: UnsafeCell<[u8; 256]>,
}

// SAFETY: only the thread that moved `state` from 0 to 1 writes, and readers wait for 2.
unsafe impl Sync for Message {}

static MESSAGE: Message =
    Message { state: AtomicU32::new(0), len: AtomicUsize::new(0), text: UnsafeCell::new([0; 256]) };

/// The first panic's message, if any thread of the recorder panicked in this process.
pub(crate) fn message() -> Option<&'static str> {
    if MESSAGE.state.load(Ordering::Acquire) != 2 {
        return None;
    }
    // SAFETY: `state` is 2: the text is complete and never written again.
    let text = unsafe { &*MESSAGE.text.get() };
    let text = text.get(..MESSAGE.len.load(Ordering::Relaxed))?;
    Some(core::str::from_utf8(text).unwrap_or("the recorder panicked"))
}

/// Whether a thread of the recorder panicked in this process.
pub(crate) fn happened() -> bool {
    MESSAGE.state.load(Ordering::Acquire) != 0
}

/// Fault injection: which place shall panic; 0 = none.
static REQUESTED: AtomicU8 = AtomicU8::new(0);

/// Fault injection: makes [`if_requested`] panic at `place`, one of the `TEST_PANIC_` values of
/// [`stk_schema::control`].
pub(crate) fn request(place: u8) {
    REQUESTED.store(place, Ordering::Relaxed);
}

/// Panics if a test requested it for `place`.
pub(crate) fn if_requested(place: u8) {
    assert!(REQUESTED.load(Ordering::Relaxed) != place, "a test requested this");
}

/// Keeps the first panic's position and text.
#[cfg_attr(test, allow(dead_code))]
fn keep(info: &core::panic::PanicInfo<'_>) {
    if MESSAGE.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    // SAFETY: this thread alone moved `state` to 1.
    let mut writer = TruncatingWriter { into: unsafe { &mut *MESSAGE.text.get() }, len: 0 };
    if let Some(place) = info.location() {
        // Only the file's name: the folders are those of the machine that built the agent.
        let file = place.file().rsplit(['/', '\\']).next().unwrap_or("");
        let _ = write!(writer, "{}:{}: ", file, place.line());
    }
    let _ = write!(writer, "{}", info.message());
    MESSAGE.len.store(writer.len, Ordering::Relaxed);
    MESSAGE.state.store(2, Ordering::Release);
}

/// Writes as much as fits, whole characters only.
struct TruncatingWriter<'a> {
    into: &'a mut [u8],
    len: usize,
}

impl Write for TruncatingWriter<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for character in text.chars() {
            let mut bytes = [0; 4];
            let bytes = character.encode_utf8(&mut bytes).as_bytes();
            match self.into.get_mut(self.len..self.len + bytes.len()) {
                Some(place) => place.copy_from_slice(bytes),
                None => break,
            }
            self.len += bytes.len();
        }
        Ok(())
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    keep(info);
    super::landing::leave_call();
    // The writer thread (or the watchdog, if the writer panicked) polls `happened` and ends the
    // trace. The watchdog resumes a thread that this one had suspended.
    loop {
        // SAFETY: no preconditions.
        unsafe { windows_sys::Win32::System::Threading::Sleep(u32::MAX) };
    }
}
