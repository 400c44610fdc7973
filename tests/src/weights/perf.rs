//! perf: the instruction and stack pointers at which Linux finds each thread of a process.

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// One sample: the user-mode pointers, also where the thread was in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointers {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
}

/// How often perf is started.
const TRIES: u32 = 3;

/// Samples by Linux thread id.
pub type Samples = BTreeMap<u32, Vec<Pointers>>;

/// Samples all threads of the Linux process `pid` by the processor's clock, at `rate` a second, for
/// `seconds`.
///
/// # Errors
/// When perf is missing or may not sample.
pub fn record(pid: u32, rate: u32, seconds: u32, file: &Path) -> Result<Samples> {
    let (rate, pid, seconds) = (rate.to_string(), pid.to_string(), seconds.to_string());
    // perf gives up if a thread ends while it is being opened.
    let recorded = |_: &u32| {
        Command::new("perf")
            .args(["record", "-q", "-F", &rate, "-e", "cpu-clock", "--user-regs=ip,sp", "-p", &pid, "-o"])
            .arg(file)
            .args(["--", "sleep", &seconds])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .status()
            .is_ok_and(|status| status.success())
    };
    if (0..TRIES).find(recorded).is_none() {
        bail!(
            "perf record failed {TRIES} times: Debian's linux-perf is missing, may not sample, or the program ended"
        );
    }
    let script = Command::new("perf")
        .args(["script", "-F", "tid,uregs", "-i"])
        .arg(file)
        .stderr(Stdio::null())
        .output()?;
    if !script.status.success() {
        bail!("perf script ended with {}", script.status);
    }
    Ok(parse(&String::from_utf8_lossy(&script.stdout)))
}

/// Lines such as ` 4711  ABI:2    SP:0x21fe98    IP:0x7b62f1a4`; `ABI:0` stands for a sample
/// without user-mode registers.
fn parse(text: &str) -> Samples {
    let mut samples = Samples::new();
    for line in text.lines() {
        let Some(tid) = line.split_whitespace().next().and_then(|word| word.parse().ok()) else { continue };
        let register = |name: &str| {
            let hex = line.split_whitespace().find_map(|word| word.strip_prefix(name))?;
            u64::from_str_radix(hex.trim_start_matches("0x"), 16).ok()
        };
        if let (Some(ip), Some(sp)) = (register("IP:"), register("SP:")) {
            samples.entry(tid).or_default().push(Pointers { ip, sp });
        }
    }
    samples
}

/// Where the shared objects and programs of Linux are in a process: `/proc/PID/maps`.
///
/// # Errors
/// When the process is gone.
pub fn unix_ranges(pid: u32) -> Result<Vec<(u64, u64)>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().filter_map(unix_range).collect())
}

fn unix_range(line: &str) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let name = rest.split_whitespace().last()?;
    let file = name.rsplit('/').next()?;
    let unix =
        file.ends_with(".so") || file.contains(".so.") || file.starts_with("wine") || name.starts_with("[v");
    let (start, end) = range.split_once('-')?;
    unix.then_some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_by_thread_and_those_without_registers_left_out() {
        let samples = parse(
            " 12  ABI:2    SP:0x21fe98    IP:0x7b62f1a4 \n 13  ABI:0 \n 12  ABI:2    SP:0x21fe90    IP:0x10 \n",
        );
        assert_eq!(samples.len(), 1);
        assert_eq!(
            samples[&12],
            [Pointers { ip: 0x7b62_f1a4, sp: 0x21_fe98 }, Pointers { ip: 0x10, sp: 0x21_fe90 }]
        );
    }

    #[test]
    fn shared_objects_are_the_unix_side_and_images_are_not() {
        let so =
            "7f12a000-7f12b000 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/wine/x86_64-unix/ntdll.so";
        assert_eq!(unix_range(so), Some((0x7f12_a000, 0x7f12_b000)));
        assert!(
            unix_range("7b600000-7b700000 r-xp 00001000 08:01 2 /usr/lib/wine/x86_64-windows/kernel32.dll")
                .is_none()
        );
        assert!(unix_range("00400000-00500000 r-xp 00000000 00:00 0").is_none());
        assert!(unix_range("7fff1000-7fff3000 r-xp 00000000 00:00 0 [vdso]").is_some());
    }
}
