//! The system's functions that threads begin in.

/// Exports of ntdll and kernel32 that every thread of Windows and of Wine begins in. The main
/// thread begins in `RtlUserThreadStart` too. While the loader initialises a thread,
/// `LdrInitializeThunk` is its outermost function: the system enters it before the thread's own
/// start.
pub const THREAD_STARTS: [&str; 3] = ["BaseThreadInitThunk", "RtlUserThreadStart", "LdrInitializeThunk"];

/// Whether a function of the system is one of [`THREAD_STARTS`]. 32-bit symbol files decorate the
/// names: `__RtlUserThreadStart`, `@BaseThreadInitThunk@12`.
pub fn is_thread_start(function: &str) -> bool {
    let name = function.trim_start_matches(['_', '@']);
    let name = match name.rsplit_once('@') {
        Some((name, bytes)) if bytes.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    };
    THREAD_STARTS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decorated_names_are_known_too() {
        for name in ["RtlUserThreadStart", "__RtlUserThreadStart@8", "@BaseThreadInitThunk@12"] {
            assert!(is_thread_start(name), "{name}");
        }
        for name in ["", "RtlUserThreadStart2", "BaseThreadInitThunk@x", "RtlExitUserThread"] {
            assert!(!is_thread_start(name), "{name}");
        }
    }
}
