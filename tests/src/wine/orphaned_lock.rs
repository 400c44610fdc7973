//! Recognises a process that hangs because of Wine itself.
//!
//! Wine's ntdll guards the queues of RtlWaitOnAddress, and so of critical sections, by spin locks.
//! A thread that is terminated while it holds one leaves it locked. ExitProcess terminates all
//! threads except one, which then spins for ever if it needs the same lock. This happens without a
//! recorder too. Windows has no such locks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The number of looks at a process, which must all agree.
const LOOKS: u32 = 5;
/// Bytes of the loop around a spin lock.
const LOOP: u64 = 32;

/// Whether the Linux process `pid` has only one thread left, which spins in Wine's ntdll.dll.
pub(super) fn is_left_spinning(pid: u32) -> bool {
    let mut places = Vec::new();
    for _ in 0..LOOKS {
        match spinning_in_ntdll(pid) {
            Some(place) => places.push(place),
            None => return false,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    places.iter().all(|place| place.abs_diff(places[0]) < LOOP)
}

/// Instruction pointer of the only thread, if it runs code of ntdll.dll.
fn spinning_in_ntdll(pid: u32) -> Option<u64> {
    let process = Path::new("/proc").join(pid.to_string());
    if std::fs::read_dir(process.join("task")).ok()?.count() != 1 {
        return None;
    }
    // The kernel shows a thread's instruction pointer only while the thread is stopped.
    signal(pid, "STOP");
    std::thread::sleep(Duration::from_millis(20));
    let place = std::fs::read_to_string(process.join("syscall"));
    signal(pid, "CONT");
    // `-1 STACK_POINTER INSTRUCTION_POINTER` outside of system calls.
    let place = place.ok()?;
    let mut words = place.split_whitespace();
    if words.next() != Some("-1") {
        return None;
    }
    let ip = u64::from_str_radix(words.nth(1)?.trim_start_matches("0x"), 16).ok()?;
    let maps = std::fs::read_to_string(process.join("maps")).ok()?;
    let holds = |line: &str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        range.is_some_and(|(from, to)| (hex(from)..hex(to)).contains(&ip))
    };
    maps.lines().any(|line| line.ends_with("/ntdll.dll") && holds(line)).then_some(ip)
}

fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
}
