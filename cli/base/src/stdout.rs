//! Whether the program was started with a standard output (Linux, macOS).
//!
//! Rust's runtime opens /dev/null in place of a standard stream that is closed, so that what is
//! written there is lost and never fails. Therefore the system is queried before that, when the
//! loader starts the program.
// The place of a function that the loader calls, and the call itself, are unsafe.
#![allow(unsafe_code)]

use std::io;

/// Checks that there is a standard output.
///
/// # Errors
///
/// That it was closed when the program was started.
pub fn check() -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    if start::CLOSED.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(io::Error::other("is closed"));
    }
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod start {
    use std::sync::atomic::{AtomicBool, Ordering};

    pub(super) static CLOSED: AtomicBool = AtomicBool::new(false);

    // SAFETY: the section holds pointers to functions that the loader calls once before `main`.
    // The function uses nothing of Rust's runtime.
    #[used]
    #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
    static PROBE: extern "C" fn() = probe;

    extern "C" fn probe() {
        // SAFETY: fcntl only asks whether the descriptor is open.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        CLOSED.store(flags < 0, Ordering::Relaxed);
    }
}
