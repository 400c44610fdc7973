//! Whether a thread can be in the agent's exception handler, or on its way into it, after the
//! handler was removed.
//!
//! The system calls a vectored handler outside its own locks, so it does not say when the last
//! thread has left a handler that is removed. But such a thread is in one of four places: in the
//! agent's code; in something that the handler calls, then the agent has counted it
//! ([`stk_schema::control::AgentStatus::handler_begun`]); in ntdll's dispatcher of exceptions,
//! which has picked the handler and not called it yet; or in a system call by which that dispatcher
//! gives a lock back. A thread that was once seen elsewhere never gets there again.
//!
//! Not covered: a program that has hooked ntdll's own functions for giving a lock back, and a
//! thread that the hook delays on the dispatcher's way to the handler.

use crate::image::Image;
use std::ops::Range;
use stk_schema::Arch;

/// System calls that may be made between the choice of a handler and its call: they give a lock
/// back. None of them waits.
const RELEASES: [&str; 6] = [
    "NtAlertThreadByThreadId",
    "NtAlertThreadByThreadIdEx",
    "NtReleaseKeyedEvent",
    "NtReleaseSemaphore",
    "NtSetEvent",
    "NtQueryInformationProcess",
];
/// Bytes of a system call's stub; they are shorter.
const STUB: u64 = 32;
/// Bytes before the instruction pointer that [`Places::is_elsewhere`] looks at.
pub(crate) const BEFORE: usize = 7;

/// Where threads of the process must not be.
pub(crate) struct Places {
    arch: Arch,
    agent: Range<u64>,
    /// Where exceptions are dispatched.
    ntdll: Range<u64>,
    /// Stubs of [`RELEASES`].
    releases: Vec<Range<u64>>,
}

impl Places {
    /// The agent's image, and ntdll, whose load address is `base`.
    pub(crate) fn new(arch: Arch, agent: Range<u64>, base: u64, ntdll: &Image) -> Places {
        let stubs = RELEASES.iter().filter_map(|name| ntdll.export(name));
        let releases = stubs.map(|rva| base + u64::from(rva)).map(|at| at..at + STUB).collect();
        Places { arch, agent, ntdll: base..base + u64::from(ntdll.identity.size_of_image), releases }
    }

    /// Whether the code around an instruction pointer there must be known.
    pub(crate) fn needs_code(&self, ip: u64) -> bool {
        self.ntdll.contains(&ip)
    }

    /// Whether a thread with this instruction pointer, which the agent has not counted, is neither
    /// in the agent nor on its way there. `code`: [`BEFORE`] bytes before `ip` and the one at it.
    pub(crate) fn is_elsewhere(&self, ip: u64, code: Option<&[u8; BEFORE + 1]>) -> bool {
        if self.agent.contains(&ip) {
            return false;
        }
        if !self.needs_code(ip) {
            return true;
        }
        let releases = self.releases.iter().any(|stub| stub.contains(&ip));
        !releases && code.is_some_and(|code| is_after_system_call(self.arch, code))
    }
}

/// Whether the instruction before is a system call's, or one that leads to it, and the next
/// returns.
fn is_after_system_call(arch: Arch, code: &[u8; BEFORE + 1]) -> bool {
    let [before @ .., next] = code;
    match arch {
        // syscall; int 2e. Then ret.
        Arch::X64 => *next == 0xc3 && (before.ends_with(&[0x0f, 0x05]) || before.ends_with(&[0xcd, 0x2e])),
        // call edx; call fs:[c0]. Then ret or ret n.
        Arch::X86 => {
            let returns = matches!(*next, 0xc2 | 0xc3);
            returns && (before.ends_with(&[0xff, 0xd2]) || *before == [0x64, 0xff, 0x15, 0xc0, 0, 0, 0])
        }
        // A handler is not removed from arm64 processes in a way that was tried.
        Arch::Arm64 => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageIdentity;

    const NTDLL: u64 = 0x7000_0000;
    const WAITS: [u8; 8] = [0, 0, 0, 0, 0, 0x0f, 0x05, 0xc3];

    fn ntdll(exports: &[(&str, u32)]) -> Image {
        Image {
            machine: 0x8664,
            dll: true,
            identity: ImageIdentity { time_date_stamp: 1, size_of_image: 0x1_0000, check_sum: 1 },
            name: "ntdll.dll".to_owned(),
            exports: exports.iter().map(|&(name, rva)| (name.to_owned(), rva)).collect(),
            resources: 0..0,
            cet: false,
            guard_cf: false,
        }
    }

    fn places(arch: Arch) -> Places {
        let image = ntdll(&[("NtWaitForSingleObject", 0x1000), ("NtSetEvent", 0x2000)]);
        Places::new(arch, 0x1_0000..0x2_0000, NTDLL, &image)
    }

    #[test]
    fn a_thread_in_the_agent_is_never_elsewhere() {
        assert!(!places(Arch::X64).is_elsewhere(0x1_0000, Some(&WAITS)));
        assert!(places(Arch::X64).is_elsewhere(0x2_0000, None));
    }

    #[test]
    fn a_thread_in_the_code_of_ntdll_may_be_about_to_call_the_handler() {
        let places = places(Arch::X64);
        assert!(!places.is_elsewhere(NTDLL + 0x5000, Some(&[0x90; 8])));
        assert!(!places.is_elsewhere(NTDLL + 0x5000, None));
        assert!(places.is_elsewhere(NTDLL + 0x1_0000, None), "behind ntdll");
    }

    #[test]
    fn a_thread_in_a_system_call_is_elsewhere_unless_the_call_gives_a_lock_back() {
        let places = places(Arch::X64);
        assert!(places.is_elsewhere(NTDLL + 0x1012, Some(&WAITS)));
        assert!(!places.is_elsewhere(NTDLL + 0x2012, Some(&WAITS)));
    }

    #[test]
    fn system_calls_are_known_by_their_instructions() {
        let x86 = places(Arch::X86);
        for code in [
            [0, 0, 0, 0, 0, 0xff, 0xd2, 0xc2],
            [0, 0, 0, 0, 0, 0xff, 0xd2, 0xc3],
            [0x64, 0xff, 0x15, 0xc0, 0, 0, 0, 0xc2],
        ] {
            assert!(x86.is_elsewhere(NTDLL + 0x1012, Some(&code)), "{code:x?}");
        }
        assert!(!x86.is_elsewhere(NTDLL + 0x1012, Some(&WAITS)));
        let x64 = places(Arch::X64);
        assert!(x64.is_elsewhere(NTDLL + 0x1012, Some(&[0, 0, 0, 0, 0, 0xcd, 0x2e, 0xc3])));
        assert!(!x64.is_elsewhere(NTDLL + 0x1012, Some(&[0, 0, 0, 0, 0, 0x0f, 0x05, 0x90])));
    }
}
